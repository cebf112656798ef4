"""What the kernel lets this process have: open files, and memory that is pinned for devices."""

import re
import resource
from dataclasses import dataclass
from pathlib import Path

from baton.doctor.finding import Finding, failure, ok, warning

LEAST_FILES = 256  # an engine, its gRPC server and a handful of peers
ENOUGH_FILES = 4096
CAP_IPC_LOCK = 14  # linux/capability.h: its owner may pin without a limit
STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The soft limits of a process; None: unlimited."""

    open_files: int | None
    pinned_bytes: int | None


def process_limits(status: Path = STATUS) -> ProcessLimits:
    """Those of this process; one that may pin whatever it likes has no limit of pinned memory."""
    pinned = None if _may_pin(status) else _soft(resource.RLIMIT_MEMLOCK)
    return ProcessLimits(_soft(resource.RLIMIT_NOFILE), pinned)


def check_file_limit(limits: ProcessLimits) -> Finding:
    """Every client, peer and KV connection is an open file."""
    limit = limits.open_files
    remedy = f"ulimit -n {1 << 16}; LimitNOFILE= of a systemd unit; docker run --ulimit nofile={1 << 16}"
    if limit is None or limit >= ENOUGH_FILES:
        return ok("file-limit", f"{limit if limit is not None else 'unlimited'} open files")
    if limit < LEAST_FILES:
        return failure("file-limit", f"{limit} open files: not enough for a few peers and clients", remedy)
    return warning("file-limit", f"{limit} open files: under load connections will be refused", remedy)


def check_pinned_memory(limits: ProcessLimits, pool_bytes: int | None, has_rdma: bool) -> Finding:
    """RDMA needs the whole pool pinned; without an RDMA device nothing is. `pool_bytes` None: not known."""
    limit = limits.pinned_bytes
    remedy = "ulimit -l unlimited; LimitMEMLOCK=infinity of a systemd unit; docker run --ulimit memlock=-1"
    if limit is None:
        return ok("memlock", "unlimited")
    if not has_rdma:
        return ok("memlock", f"{limit >> 10} KiB; nothing has to be pinned without an RDMA device")
    if pool_bytes is None:
        return warning("memlock", f"{limit >> 10} KiB may be pinned, and a pool of that size no larger", remedy)
    if limit < pool_bytes:
        found = f"{limit >> 10} KiB may be pinned, the pool has {pool_bytes >> 10} KiB: RDMA cannot read it"
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
