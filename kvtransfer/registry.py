"""Transports by name."""

from kvtransfer.auto import AutoTransport, Backend, Unavailable
from kvtransfer.base import KVTransport, PoolIdentity
from kvtransfer.errors import TransportUnavailable
from kvtransfer.quarantine import Quarantine
from kvtransfer.rdma import has_rdma_device
from kvtransfer.shared_pool import SharedPool

TRANSPORTS = ("auto", "shared_memory", "tcp", "nixl")


def create_transport(name: str, identity: PoolIdentity, memory: SharedPool, host: str) -> KVTransport:
    """A transport for a pool in `memory`; `host` is the address where peers reach this process.

    Raises TransportUnavailable if the one that was asked for does not work here, ValueError for an unknown name.
    """
    quarantine = Quarantine()
    if name == "auto":
        return _create_auto(identity, memory, host, quarantine)
    return _create(name, identity, memory, host, quarantine)


def _create(name: str, identity: PoolIdentity, memory: SharedPool, host: str, quarantine: Quarantine) -> KVTransport:
    if name == "shared_memory":
        from kvtransfer.shared_memory import SharedMemoryTransport

        return SharedMemoryTransport(identity, memory, quarantine)
    if name == "tcp":
        from kvtransfer.tcp import TcpTransport

        return TcpTransport(identity, host, quarantine)
    if name == "nixl":
        from kvtransfer.nixl import NixlTransport

        return NixlTransport(identity, host, quarantine)
    raise ValueError(f"unknown KV transport {name!r}, known are {', '.join(TRANSPORTS)}")


def _create_auto(identity: PoolIdentity, memory: SharedPool, host: str, quarantine: Quarantine) -> AutoTransport:
    backends: list[Backend | Unavailable] = []
    for name in ("shared_memory", "nixl", "tcp"):
        if name == "nixl" and not has_rdma_device():
            # Without RDMA it could only do what shared memory does on one host, and nothing across hosts.
            backends.append(Unavailable(name, "no RDMA device on this host"))
            continue
        try:
            backends.append(Backend(name, _create(name, identity, memory, host, quarantine)))
        except TransportUnavailable as error:
            backends.append(Unavailable(name, str(error)))
    return AutoTransport(backends, quarantine)
