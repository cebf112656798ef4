"""Cores and memory of this machine, or of this container."""

import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from baton.engine.execution.cores import parse_cores
from baton.process.host_memory import host_memory

CGROUP = Path("/sys/fs/cgroup")
NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores and memory that the cluster may use."""

    num_cores: int
    memory_bytes: int  # currently free
    nodes: tuple[tuple[int, ...], ...] = ()  # cores of each NUMA node; empty if a CPU quota applies

    def times(self, count: int) -> "Machine":
        """Return the cores and memory of `count` such machines together."""
        return self if count == 1 else Machine(self.num_cores * count, self.memory_bytes * count)

    def near(self, index: int, count: int) -> "NearCores | None":
        """Return the cores for process `index` of `count`, on as few NUMA nodes as possible; None: any cores."""
        num_nodes = len(self.nodes)
        if num_nodes < 2:
            return None
        starts = [each * num_nodes // count for each in range(count)]
        end = max(starts[index] + 1, (index + 1) * num_nodes // count)
        cores = tuple(core for node in self.nodes[starts[index] : end] for core in node)
        return NearCores(cores, num_own=max(1, len(cores) // starts.count(starts[index])))


@dataclass(frozen=True, slots=True)
class NearCores:
    """Cores to pin a process to."""

    cores: tuple[int, ...]
    num_own: int  # its share of them, if other processes are pinned there too


def this_machine(cgroup: Path = CGROUP, nodes: Path = NODES) -> Machine:
    """Return the cores and free memory within the affinity mask and the control group's limits."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    num_cores = len(cores)
    quota = _read(cgroup / "cpu.max")
    if len(quota) == 2 and quota[0] != "max":
        num_cores = min(num_cores, max(1, math.floor(int(quota[0]) / int(quota[1]))))
    near = _nodes(nodes, cores) if num_cores == len(cores) else ()
    return Machine(num_cores, host_memory(cgroup).free_bytes, near)


def _nodes(directory: Path, allowed: Collection[int]) -> tuple[tuple[int, ...], ...]:
    """Return the allowed cores of each NUMA node that has any."""
    paths = sorted(directory.glob("node[0-9]*"), key=lambda node: int(node.name.removeprefix("node")))
    lists = [_read(node / "cpulist") for node in paths]
    nodes = [tuple(core for core in parse_cores(words[0]) if core in allowed) for words in lists if words]
    return tuple(filter(None, nodes))


def _read(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []  # no control group, or not version 2
