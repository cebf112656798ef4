"""Creation of transports by name."""

import logging

import torch

from baton.extras import NIXL
from baton.kvtransfer.backend import Backend, Unavailable
from baton.kvtransfer.base import KVTransport, PoolIdentity
from baton.kvtransfer.errors import TransportUnavailable
from baton.kvtransfer.nixl.rdma import has_rdma_device
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.kvtransfer.transport import Transport
from baton.settings.names import GPU_TRANSPORTS, TRANSPORTS

logger = logging.getLogger(__name__)

HOST = torch.device("cpu")


def create_transport(
    name: str, identity: PoolIdentity, memory: SharedPool, host: str, port: int = 0, device: torch.device = HOST
) -> KVTransport:
    """Create a transport for a pool in `memory`, or on a GPU `device`.

    Peers reach it at the address `host` and `port`; 0: any free port. With `auto`, tcp listens on `port`, nixl on
    `port + 1`, staged on `port + 2` and nccl on `port + 3`. Shared memory needs no port. Raises TransportUnavailable if
    the named transport does not work here, ValueError for an unknown name.
    """
    if name == "auto" and not NIXL.is_installed:
        level = logging.INFO if device.type == "cpu" and not has_rdma_device() else logging.WARNING
        logger.log(level, "%s", NIXL.missing("KV transfer over RDMA or between GPUs"))
    if name != "auto":
        return Transport(identity, [_backend(name, identity, memory, host, port, device)])
    backends = _host_backends if device.type == "cpu" else _gpu_backends
    return Transport(identity, backends(identity, memory, host, port, device))


def _backend(
    name: str, identity: PoolIdentity, memory: SharedPool, host: str, port: int, device: torch.device
) -> Backend:
    if name == "shared_memory":
        from baton.kvtransfer.shared_memory.transport import SharedMemoryBackend

        return SharedMemoryBackend(memory)
    if name == "tcp":
        from baton.kvtransfer.tcp.transport import TcpBackend

        return TcpBackend(host, port)
    if name == "nixl":
        from baton.kvtransfer.nixl.transport import NixlBackend

        return NixlBackend(identity.incarnation, host, port, device=device)
    if name == "nccl":
        from baton.kvtransfer.nccl.transport import PairBackend

        return PairBackend(host, port)
    if name == "staged":
        return _staged(identity, host, port)
    known = ", ".join(dict.fromkeys(TRANSPORTS + GPU_TRANSPORTS))
    raise ValueError(f"unknown KV transport {name!r}, known are {known}")


def _host_backends(
    identity: PoolIdentity, memory: SharedPool, host: str, port: int, device: torch.device
) -> list[Backend | Unavailable]:
    """Return the backends of `auto` for host memory."""
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
            backends.append(_backend(name, identity, memory, host, ports[name], device))
        except TransportUnavailable as error:
            backends.append(Unavailable(name, str(error)))
    return backends


def _staged(identity: PoolIdentity, host: str, port: int) -> Backend:
    """Create `staged` over `auto` for host memory; its listener uses `port + 2`."""
    from baton.kvtransfer.staged.transport import StagedBackend

    window = SharedPool()
    underneath = Transport(identity, _host_backends(identity, window, host, port, HOST))
    return StagedBackend(underneath, window, host, port + 2 if port else 0)


def _gpu_backends(
    identity: PoolIdentity, memory: SharedPool, host: str, port: int, device: torch.device
) -> list[Backend | Unavailable]:
    """Return the backends of `auto` for a GPU: NIXL or NCCL from GPU to GPU, otherwise host memory with a warning."""
    backends: list[Backend | Unavailable] = []
    for name, place in (("nixl", 1), ("nccl", 3)):
        try:
            backends.append(_backend(name, identity, memory, host, port + place if port else 0, device))
        except TransportUnavailable as error:
            backends.append(Unavailable(name, str(error)))
    backends.append(_staged(identity, host, port))
    return backends
