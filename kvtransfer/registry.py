"""Transports by name."""

from kvtransfer.auto import AutoTransport, Backend, Unavailable
from kvtransfer.base import KVTransport, PoolIdentity
from kvtransfer.errors import TransportUnavailable
from kvtransfer.quarantine import Quarantine
from kvtransfer.rdma import has_rdma_device
from kvtransfer.shared_pool import SharedPool

TRANSPORTS = ("auto", "shared_memory", "tcp", "nixl")


def create_transport(name: str, identity: PoolIdentity, memory: SharedPool, host: str, port: int = 0) -> KVTransport:
    """A transport for a pool in `memory`; `host` is the address where peers reach this process.

    They come in at `port`, or at any free one if that is 0; with `auto` tcp has it, and nixl the one after it.
    Shared memory needs none. Raises TransportUnavailable if the transport that was asked for does not work here,
    ValueError for an unknown name.
    """
    quarantine = Quarantine()
    if name == "auto":
        return _create_auto(identity, memory, host, port, quarantine)
    return _create(name, identity, memory, host, port, quarantine)


def _create(
    name: str, identity: PoolIdentity, memory: SharedPool, host: str, port: int, quarantine: Quarantine
) -> KVTransport:
    if name == "shared_memory":
        from kvtransfer.shared_memory import SharedMemoryTransport

        return SharedMemoryTransport(identity, memory, quarantine)
    if name == "tcp":
        from kvtransfer.tcp import TcpTransport

        return TcpTransport(identity, host, quarantine, port=port)
    if name == "nixl":
        from kvtransfer.nixl import NixlTransport

        return NixlTransport(identity, host, quarantine, port=port)
    raise ValueError(f"unknown KV transport {name!r}, known are {', '.join(TRANSPORTS)}")


def _create_auto(
    identity: PoolIdentity, memory: SharedPool, host: str, port: int, quarantine: Quarantine
) -> AutoTransport:
    ports = {"shared_memory": 0, "tcp": port, "nixl": port + 1 if port else 0}
    backends: list[Backend | Unavailable] = []
    for name in ("shared_memory", "nixl", "tcp"):
        if name == "nixl" and not has_rdma_device():
            # Without RDMA it could only do what shared memory does on one host, and nothing across hosts.
            backends.append(Unavailable(name, "no RDMA device on this host"))
            continue
        try:
            backends.append(Backend(name, _create(name, identity, memory, host, ports[name], quarantine)))
        except TransportUnavailable as error:
            backends.append(Unavailable(name, str(error)))
    return AutoTransport(backends, quarantine)
