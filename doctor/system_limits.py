"""Checks of system limits: /dev/shm, huge pages, open files and pinned memory."""

import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path

from baton.doctor.finding import Finding, failure, ok, warning

SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_BYTES = 1 << 30
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
MEMINFO = Path("/proc/meminfo")
REMEDY = "docker run --shm-size=8g (or --ipc=host); in Kubernetes an emptyDir of medium Memory at /dev/shm"


@dataclass(frozen=True, slots=True)
class FileSystemSpace:
    """Size and free space of a file system."""

    size_bytes: int
    free_bytes: int


def shared_memory_space(directory: Path = SHARED_MEMORY) -> FileSystemSpace | None:
    """Return the space of /dev/shm; None if it does not exist."""
    try:
        stats = os.statvfs(directory)
    except OSError:
        return None
    return FileSystemSpace(stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize)


def check_shared_memory(space: FileSystemSpace | None) -> Finding:
    """Check the space for users of POSIX shared memory (UCX under NIXL, NCCL, Ray). KV pools do not use it."""
    if space is None:
        return failure("shared-memory-size", f"{SHARED_MEMORY} does not exist", REMEDY)
    found = f"{_mib(space.free_bytes)} of {_mib(space.size_bytes)} MiB of {SHARED_MEMORY} are free"
    if space.free_bytes >= MIN_SHARED_BYTES:
        return ok("shared-memory-size", found)
    return warning("shared-memory-size", f"{found}: NIXL, NCCL or Ray may fail while running", REMEDY)


def check_huge_pages(setting: Path = HUGE_PAGES, meminfo: Path = MEMINFO) -> Finding:
    """Report whether pools may use huge pages. Without them, startup and copies are somewhat slower, nothing else."""
    try:
        chosen = re.search(r"\[(\w+)\]", setting.read_text())
    except OSError:
        chosen = None
    try:
        reserved = re.search(r"^HugePages_Total:\s+(\d+)", meminfo.read_text(), re.MULTILINE)
    except OSError:
        reserved = None
    transparent = chosen[1] if chosen else "unknown"
    return ok("huge-pages", f"transparent ones for pools: {transparent}; reserved: {reserved[1] if reserved else 0}")


def _mib(num_bytes: int) -> int:
    return num_bytes >> 20


MIN_FILES = 256  # an engine, its gRPC server and a handful of peers
ENOUGH_FILES = 4096
CAP_IPC_LOCK = 14  # linux/capability.h: allows pinning without a limit
STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Soft limits of a process; None: unlimited."""

    open_files: int | None
    pinned_bytes: int | None


def process_limits(status: Path = STATUS) -> ProcessLimits:
    """Return this process's limits. With CAP_IPC_LOCK pinned memory is unlimited."""
    pinned = None if _may_pin(status) else _soft(resource.RLIMIT_MEMLOCK)
    return ProcessLimits(_soft(resource.RLIMIT_NOFILE), pinned)


def check_file_limit(limits: ProcessLimits) -> Finding:
    """Check the limit of open files: every client, peer and KV connection is one."""
    limit = limits.open_files
    remedy = f"ulimit -n {1 << 16}; LimitNOFILE= of a systemd unit; docker run --ulimit nofile={1 << 16}"
    if limit is None or limit >= ENOUGH_FILES:
        return ok("file-limit", f"{limit if limit is not None else 'unlimited'} open files")
    if limit < MIN_FILES:
        return failure("file-limit", f"{limit} open files: not enough for a few peers and clients", remedy)
    return warning("file-limit", f"{limit} open files: connections will be refused under load", remedy)


def check_pinned_memory(limits: ProcessLimits, pool_bytes: int | None, has_rdma: bool) -> Finding:
    """Check that RDMA may pin the whole pool; without an RDMA device nothing is pinned. pool_bytes None: unknown."""
    limit = limits.pinned_bytes
    remedy = "ulimit -l unlimited; LimitMEMLOCK=infinity of a systemd unit; docker run --ulimit memlock=-1"
    if limit is None:
        return ok("memlock", "unlimited")
    if not has_rdma:
        return ok("memlock", f"{limit >> 10} KiB; nothing is pinned without an RDMA device")
    if pool_bytes is None:
        return warning("memlock", f"{limit >> 10} KiB may be pinned, which limits the size of the KV pool", remedy)
    if limit < pool_bytes:
        found = f"{limit >> 10} KiB may be pinned, but the pool has {pool_bytes >> 10} KiB: RDMA cannot use it"
        return failure("memlock", found, remedy)
    return ok("memlock", f"{limit >> 10} KiB, the pool has {pool_bytes >> 10} KiB")


def _soft(which: int) -> int | None:
    limit, _ = resource.getrlimit(which)
    return None if limit == resource.RLIM_INFINITY else limit


def _may_pin(status: Path) -> bool:
    try:
        capabilities = re.search(r"^CapEff:\s+([0-9a-f]+)", status.read_text(), re.MULTILINE)
    except OSError:
        return False
    return capabilities is not None and bool(int(capabilities[1], 16) >> CAP_IPC_LOCK & 1)
