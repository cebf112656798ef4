"""Memory between processes: /dev/shm and huge pages."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from baton.doctor.finding import Finding, failure, ok, warning

SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED_BYTES = 1 << 30
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
MEMINFO = Path("/proc/meminfo")
REMEDY = "docker run --shm-size=8g (or --ipc=host); in Kubernetes an emptyDir of medium Memory at /dev/shm"


@dataclass(frozen=True, slots=True)
class FileSystemSpace:
    """Room of a file system."""

    size_bytes: int
    free_bytes: int


def shared_memory_space(directory: Path = SHARED_MEMORY) -> FileSystemSpace | None:
    """Room in /dev/shm; None if there is no such thing."""
    try:
        stats = os.statvfs(directory)
    except OSError:
        return None
    return FileSystemSpace(stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize)


def check_shared_memory(space: FileSystemSpace | None) -> Finding:
    """Whether what needs POSIX shared memory (UCX below NIXL, NCCL, Ray) has room; our own pools lie elsewhere."""
    if space is None:
        return failure("shared-memory-size", f"{SHARED_MEMORY} is not there", REMEDY)
    found = f"{_mib(space.free_bytes)} of {_mib(space.size_bytes)} MiB of {SHARED_MEMORY} are free"
    if space.free_bytes >= LEAST_SHARED_BYTES:
        return ok("shared-memory-size", found)
    return warning("shared-memory-size", f"{found}: NIXL, NCCL or Ray may fail in the middle of their work", REMEDY)


def check_huge_pages(setting: Path = HUGE_PAGES, meminfo: Path = MEMINFO) -> Finding:
    """Says whether pools may have huge pages; small ones cost some time at start and while copying, no more."""
    try:
        chosen = re.search(r"\[(\w+)\]", setting.read_text())
    except OSError:
        chosen = None
    try:
        reserved = re.search(r"^HugePages_Total:\s+(\d+)", meminfo.read_text(), re.MULTILINE)
    except OSError:
        reserved = None
    transparent = chosen[1] if chosen else "not said"
    return ok("huge-pages", f"transparent ones for pools: {transparent}; reserved: {reserved[1] if reserved else 0}")


def _mib(num_bytes: int) -> int:
    return num_bytes >> 20
