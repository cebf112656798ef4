"""Free memory and out-of-memory kills from control groups of both versions."""

import os
from pathlib import Path

import psutil

from baton.process.host_memory import HostMemory, OomKills, host_memory, in_gib

MIB = 1 << 20


def write(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)


def proc_in(tmp_path: Path, membership: str) -> Path:
    for process in ("self", "77"):
        write(tmp_path / "proc" / process, cgroup=membership)
    return tmp_path / "proc"


def test_the_smallest_limit_of_all_parent_groups_counts(tmp_path: Path) -> None:
    groups, proc = tmp_path / "cgroup", proc_in(tmp_path, "0::/slice/service\n")
    write(groups / "slice", memory__max=f"{100 * MIB}\n", memory__current=f"{90 * MIB}\n")
    write(groups / "slice/service", memory__max="max\n", memory__current=f"{10 * MIB}\n")
    assert host_memory(groups, proc) == HostMemory(10 * MIB, is_limited=True)
    write(groups / "slice", memory__stat=f"anon 5\nactive_file {20 * MIB}\ninactive_file {30 * MIB}\n")
    assert host_memory(groups, proc).free_bytes == 60 * MIB, "cached files are as good as free"


def test_limits_of_control_groups_v1_are_read(tmp_path: Path) -> None:
    groups, proc = tmp_path / "cgroup", proc_in(tmp_path, "4:cpu:/\n3:memory:/box\n0::/\n")
    write(
        groups / "memory/box",
        memory__limit_in_bytes=f"{64 * MIB}\n",
        memory__usage_in_bytes=f"{60 * MIB}\n",
        memory__stat=f"active_file 1\ntotal_active_file {MIB}\ntotal_inactive_file {MIB}\n",
    )
    write(groups / "memory", memory__limit_in_bytes="9223372036854771712\n", memory__usage_in_bytes="0\n")
    memory = host_memory(groups, proc)
    assert memory == HostMemory(6 * MIB, is_limited=True)
    assert str(memory) == "6 MiB is free (control group's limit)"


def test_without_a_limit_the_machines_memory_counts(tmp_path: Path) -> None:
    memory = host_memory(tmp_path / "none", tmp_path / "none")
    assert not memory.is_limited
    assert 0 < memory.free_bytes <= psutil.virtual_memory().total
    assert in_gib(3 << 29) == "1.5 GiB"


def test_kills_of_the_processes_own_group_count(tmp_path: Path) -> None:
    groups, proc = tmp_path / "cgroup", proc_in(tmp_path, "0::/slice/service\n")
    write(groups / "slice/service", memory__events="oom 4\noom_kill 2\n")
    write(proc, vmstat="oom_kill 9\n")
    kills = OomKills.around(77, groups, proc)
    assert kills.count == 2
    write(proc, vmstat="oom_kill 10\n")  # of another container
    assert not kills.has_grown
    write(groups / "slice/service", memory__events="oom 5\noom_kill 3\n")
    assert kills.has_grown


def test_without_groups_the_machines_kills_count(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    write(proc, vmstat="pgfault 1\noom_kill 9\n")
    kills = OomKills.around(os.getpid(), tmp_path / "none", proc)
    assert not kills.has_grown
    write(proc, vmstat="pgfault 1\noom_kill 10\n")
    assert kills.has_grown
    assert not OomKills.around(1, tmp_path / "none", tmp_path / "none").has_grown
