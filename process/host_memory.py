"""Free memory of this machine and its control groups, and the kernel's out-of-memory kills.

Reads control groups of version 2 (`memory.max`, `memory.current`, `memory.events`) and version 1
(`memory.limit_in_bytes`, `memory.usage_in_bytes`, `memory.oom_control`). The limits of a process's own group and of
all groups above it apply.
"""

from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
V2_ROOTS, V1_ROOT = (".", "unified"), "memory"  # below CGROUPS
LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
# File cache, which the kernel drops before it runs out of memory; by version.
CACHES = (("active_file", "inactive_file"), ("total_active_file", "total_inactive_file"))
OOM_EVENTS = ("memory.events", "memory.oom_control")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory that processes may still allocate."""

    free_bytes: int
    is_limited: bool  # a control group has less left than the machine

    def __str__(self) -> str:
        """Return the amount, for error texts."""
        return f"{in_gib(self.free_bytes)} is free" + (" (control group's limit)" if self.is_limited else "")


def host_memory(cgroups: Path = CGROUPS, proc: Path = PROC) -> HostMemory:
    """Return the memory that this process and its children may still allocate."""
    available_bytes = psutil.virtual_memory().available
    left = [left for group in _groups(cgroups, proc / "self") if (left := _bytes_left(group)) is not None]
    free_bytes = min((available_bytes, *left))
    return HostMemory(free_bytes, free_bytes < available_bytes)


@dataclass(frozen=True, slots=True)
class OomKills:
    """A count of the kernel's out-of-memory kills in a control group, or else on the whole machine."""

    file: Path
    count: int

    @classmethod
    def around(cls, pid: int, cgroups: Path = CGROUPS, proc: Path = PROC) -> "OomKills":
        """Return the count around a process; it never grows if the kernel has no counter."""
        events = (group / name for group in _groups(cgroups, proc / str(pid)) for name in OOM_EVENTS)
        files = [*events, proc / "vmstat"]
        file = next((file for file in files if "oom_kill" in _fields(file)), files[-1])
        return cls(file, _fields(file).get("oom_kill", 0))

    @property
    def has_grown(self) -> bool:
        """Whether a process was killed since the count was read."""
        return _fields(self.file).get("oom_kill", 0) > self.count


def in_gib(num_bytes: int) -> str:
    """Return a number of bytes as text in MiB or GiB."""
    if num_bytes < 1 << 30:
        return f"{num_bytes / (1 << 20):.0f} MiB"
    return f"{num_bytes / (1 << 30):.1f} GiB"


def _groups(cgroups: Path, process: Path) -> list[Path]:
    """Return the directories of a process's memory control groups, its own first, in each hierarchy.

    In a container the paths may be the host's, which are not visible there; its own group is then the root.
    """
    found: list[Path] = []
    for line in _text(process / "cgroup").splitlines() or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        for root in (V1_ROOT,) if controllers else V2_ROOTS:
            own = Path(path.strip("/"))
            found += [cgroups / root / group for group in (own, *own.parents)]
    return [group for group in dict.fromkeys(found) if group.is_dir()]


def _bytes_left(group: Path) -> int | None:
    """Return the bytes below a group's limit, None if it has no limit."""
    for (limit, usage), caches in zip(LIMITS, CACHES, strict=True):
        limit_text, usage_text = _text(group / limit).strip(), _text(group / usage).strip()
        if limit_text.isdecimal() and usage_text.isdecimal():
            stat = _fields(group / "memory.stat")
            cached = sum(stat.get(name, 0) for name in caches)
            return max(0, int(limit_text) - max(0, int(usage_text) - cached))
    return None


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers in a file by name."""
    pairs = (line.split() for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
