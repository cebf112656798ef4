"""What this machine, or the container around us, has to give."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores and memory that our processes may use."""

    num_cores: int
    memory_bytes: int  # not in use now


def this_machine(cgroup: Path = CGROUP) -> Machine:
    """The affinity mask and free memory, bounded by the control group's limits (cgroup v2) where there is one."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read(cgroup / "cpu.max")
    if len(quota) == 2 and quota[0] != "max":
        num_cores = min(num_cores, max(1, math.floor(int(quota[0]) / int(quota[1]))))
    memory_bytes = psutil.virtual_memory().available
    limit, current = _read(cgroup / "memory.max"), _read(cgroup / "memory.current")
    if limit and current and limit[0] != "max":
        memory_bytes = min(memory_bytes, max(0, int(limit[0]) - int(current[0])))
    return Machine(num_cores, memory_bytes)


def _read(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []  # no control group, or not version 2
