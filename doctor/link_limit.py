"""The expected bandwidth of a link: measured next to the transport if possible, otherwise the hardware's rating."""

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import psutil

from baton.doctor.rdma import rdma_ports
from baton.kvtransfer.base import PoolDescription
from baton.kvtransfer.endpoint import decode
from baton.kvtransfer.errors import TransferError
from baton.kvtransfer.nixl import transport as nixl
from baton.kvtransfer.shared_memory import transport as shared_memory
from baton.kvtransfer.tcp import transport as tcp

DISCARD_PORT = 9  # RFC 863; nothing is sent to it


def peer_host(peer: PoolDescription) -> str | None:
    """Return the address on which a peer's transports listen; None if other machines cannot reach any of them."""
    with suppress(TransferError):
        return decode(tcp.Endpoint, peer, tcp.NAME).host
    with suppress(TransferError):
        return decode(nixl.Endpoint, peer, nixl.NAME).host
    return None


def is_same_host(peer: PoolDescription) -> bool:
    """Return whether a peer runs on this machine's kernel, perhaps in another network namespace."""
    try:
        peer_id = decode(shared_memory.Endpoint, peer, shared_memory.NAME).host
    except TransferError:
        host = peer_host(peer)
        return host is not None and is_this_machine(host)
    return peer_id.partition(" ")[0] == shared_memory.host_id().partition(" ")[0]  # the kernel's boot id


def is_this_machine(host: str) -> bool:
    """Return whether an address belongs to this machine."""
    return local_address(host) == host


def local_address(host: str) -> str | None:
    """Return the local address from which this machine would reach a host; None if unreachable. Sends nothing."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((host, DISCARD_PORT))
        except OSError:
            return None
        return str(sock.getsockname()[0])


ONE_STREAM_BYTES_PER_S = 2.5e9  # about the most that one core moves over one TCP connection on any network
STEP_BYTES = 1 << 20  # bytes per copy, as in the transports


class LinkLimit(Protocol):
    """A bandwidth that no transport over a link can exceed by much."""

    @property
    def name(self) -> str:
        """Description for the report."""
        ...

    def bytes_per_s(self) -> float:
        """Return the current limit; blocks while it measures."""
        ...

    def close(self) -> None:
        """Release the resources of the measurement."""
        ...


@dataclass(frozen=True, slots=True)
class RatedLimit:
    """The rated bandwidth of the hardware."""

    name: str
    rated_bytes_per_s: float

    def bytes_per_s(self) -> float:
        """Return the rating."""
        return self.rated_bytes_per_s

    def close(self) -> None:
        """Do nothing: it holds no resources."""


class MemoryCopyLimit:
    """The bandwidth of a memory copy by one thread."""

    name = "a memory copy"

    def __init__(self, num_bytes: int) -> None:
        self._source = np.ones(num_bytes, np.uint8)
        self._target = np.zeros(num_bytes, np.uint8)

    def bytes_per_s(self) -> float:
        """Return the measured bandwidth."""
        started_s = time.perf_counter()
        for start in range(0, len(self._source), STEP_BYTES):
            np.copyto(self._target[start : start + STEP_BYTES], self._source[start : start + STEP_BYTES])
        return len(self._source) / (time.perf_counter() - started_s)

    def close(self) -> None:
        """Do nothing: it holds no resources."""


class LoopbackLimit:
    """The bandwidth of a plain TCP socket between two threads of this process."""

    name = "a loopback socket"

    def __init__(self, num_bytes: int) -> None:
        """Connect the two threads. Raises OSError if there is no loopback interface."""
        self._buffer = memoryview(bytearray(num_bytes))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._sock = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        threading.Thread(target=_send_on_request, args=(accepted, bytes(num_bytes)), daemon=True).start()

    def bytes_per_s(self) -> float:
        """Return the measured bandwidth."""
        started_s = time.perf_counter()
        self._sock.sendall(b"?")
        received = 0
        while received < len(self._buffer):
            num_bytes = self._sock.recv_into(self._buffer[received:], 0, socket.MSG_WAITALL)
            if num_bytes == 0:
                raise ConnectionError("the loopback socket was closed")
            received += num_bytes
        return len(self._buffer) / (time.perf_counter() - started_s)

    def close(self) -> None:
        """Close the connection, which ends the thread."""
        self._sock.close()


def _send_on_request(sock: socket.socket, content: bytes) -> None:
    with sock:
        while sock.recv(1):
            for start in range(0, len(content), STEP_BYTES):
                sock.sendall(content[start : start + STEP_BYTES])


def link_limit(transport: str, peer: PoolDescription, num_bytes: int) -> LinkLimit | None:
    """Return the limit of a transport to a peer, measured with `num_bytes`; None if it is unknown."""
    host = peer_host(peer)
    if transport == shared_memory.NAME or (transport == nixl.NAME and is_same_host(peer)):
        return MemoryCopyLimit(num_bytes)
    if transport == nixl.NAME:
        fastest = max(rdma_ports(), key=lambda port: port.is_active * port.bytes_per_s, default=None)
        return RatedLimit(str(fastest), fastest.bytes_per_s) if fastest and fastest.bytes_per_s else None
    return LoopbackLimit(num_bytes) if host is None or is_this_machine(host) else _network_limit(host)


def _network_limit(host: str) -> RatedLimit | None:
    local = local_address(host)
    speeds = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == local for each in addresses) and name in speeds and speeds[name].speed:
            gigabits = speeds[name].speed / 1e3
            return RatedLimit(
                f"one stream over {name} ({gigabits:g} Gb/s)", min(gigabits * 1e9 / 8, ONE_STREAM_BYTES_PER_S)
            )
    return None
