"""Creation of transports by name."""

import logging

import torch

from baton.extras import NIXL
from baton.kvtransfer.auto import AutoTransport, Backend, Unavailable
from baton.kvtransfer.base import KVTransport, PoolIdentity
from baton.kvtransfer.errors import TransportUnavailable
from baton.kvtransfer.nixl.rdma import has_rdma_device
from baton.kvtransfer.quarantine import Quarantine
from baton.kvtransfer.shared_memory.pool import SharedPool

logger = logging.getLogger(__name__)

TRANSPORTS = ("auto", "shared_memory", "tcp", "nixl")  # for pools in host memory
GPU_TRANSPORTS = ("auto", "nixl", "nccl", "staged")
HOST = torch.device("cpu")
STAGING_COSTS = "which takes each byte twice over PCIe and twice through host memory"


def create_transport(
    name: str, identity: PoolIdentity, memory: SharedPool, host: str, port: int = 0, device: torch.device = HOST
) -> KVTransport:
    """Create a transport for a pool in `memory`, or on a GPU `device`.

    Peers reach it at the address `host` and `port`; 0: any free port. With `auto`, tcp listens on `port`, nixl on
    `port + 1`, staged on `port + 2` and nccl on `port + 3`. Shared memory needs no port. Raises TransportUnavailable if
    the named transport does not work here, ValueError for an unknown name.
    """
    quarantine = Quarantine()
    if name == "auto" and not NIXL.is_installed:
        level = logging.INFO if device.type == "cpu" and not has_rdma_device() else logging.WARNING
        logger.log(level, "%s", NIXL.missing("KV transfer over RDMA or between GPUs"))
    if name == "auto" and device.type != "cpu":
        return _create_gpu_auto(identity, memory, host, port, quarantine, device)
    if name == "auto":
        return _create_auto(identity, memory, host, port, quarantine)
    return _create(name, identity, memory, host, port, quarantine, device)


def _create(
    name: str,
    identity: PoolIdentity,
    memory: SharedPool,
    host: str,
    port: int,
    quarantine: Quarantine,
    device: torch.device = HOST,
) -> KVTransport:
    if name == "shared_memory":
        from baton.kvtransfer.shared_memory.transport import SharedMemoryTransport

        return SharedMemoryTransport(identity, memory, quarantine)
    if name == "tcp":
        from baton.kvtransfer.tcp.transport import TcpTransport

        return TcpTransport(identity, host, quarantine, port=port)
    if name == "nixl":
        from baton.kvtransfer.nixl.transport import NixlTransport

        return NixlTransport(identity, host, quarantine, port=port, device=device)
    if name == "nccl":
        from baton.kvtransfer.nccl.transport import PairTransport

        return PairTransport(identity, host, quarantine, port=port)
    if name == "staged":
        return _create_staged(identity, host, port, quarantine)
    known = ", ".join(dict.fromkeys(TRANSPORTS + GPU_TRANSPORTS))
    raise ValueError(f"unknown KV transport {name!r}, known are {known}")


def _create_auto(
    identity: PoolIdentity, memory: SharedPool, host: str, port: int, quarantine: Quarantine
) -> AutoTransport:
    ports = {"shared_memory": 0, "tcp": port, "nixl": port + 1 if port else 0}
    backends: list[Backend | Unavailable] = []
    for name in ("shared_memory", "nixl", "tcp"):
        if name == "nixl" and not NIXL.is_installed:
            backends.append(Unavailable(name, "it is not installed"))
            continue
        if name == "nixl" and not has_rdma_device():
            # Without RDMA, NIXL could only replace shared memory on one host, and does nothing across hosts.
            backends.append(Unavailable(name, "no RDMA device on this host"))
            continue
        try:
            backends.append(Backend(name, _create(name, identity, memory, host, ports[name], quarantine)))
        except TransportUnavailable as error:
            backends.append(Unavailable(name, str(error)))
    return AutoTransport(backends, quarantine)


def _create_staged(identity: PoolIdentity, host: str, port: int, quarantine: Quarantine) -> KVTransport:
    """Create `staged` over `auto` for host memory; its listener uses `port + 2`."""
    from baton.kvtransfer.staged.transport import StagedTransport

    window = SharedPool()
    underneath = _create_auto(identity, window, host, port, Quarantine())
    return StagedTransport(identity, underneath, window, host, quarantine, port=port + 2 if port else 0)


def _create_gpu_auto(
    identity: PoolIdentity, memory: SharedPool, host: str, port: int, quarantine: Quarantine, device: torch.device
) -> AutoTransport:
    """Create `auto` for a GPU pool: from GPU to GPU by NIXL or NCCL, otherwise through host memory with a warning."""
    backends: list[Backend | Unavailable] = []
    for name, place in (("nixl", 1), ("nccl", 3)):
        try:
            own_port = port + place if port else 0
            backends.append(Backend(name, _create(name, identity, memory, host, own_port, quarantine, device)))
        except TransportUnavailable as error:
            backends.append(Unavailable(name, str(error)))
    backends.append(Backend("staged", _create_staged(identity, host, port, quarantine), STAGING_COSTS))
    return AutoTransport(backends, quarantine)
