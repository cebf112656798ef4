"""What a link should give: measured beside the transport where it can be, else what the hardware is rated at."""

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
    """The address where a peer's transports listen; None if it has none that other machines could reach."""
    with suppress(TransferError):
        return decode(tcp.Endpoint, peer, tcp.NAME).host
    with suppress(TransferError):
        return decode(nixl.Endpoint, peer, nixl.NAME).host
    return None


def is_same_host(peer: PoolDescription) -> bool:
    """Whether a peer runs under our kernel, in another network namespace perhaps."""
    try:
        theirs = decode(shared_memory.Endpoint, peer, shared_memory.NAME).host
    except TransferError:
        host = peer_host(peer)
        return host is not None and is_this_machine(host)
    return theirs.partition(" ")[0] == shared_memory.host_id().partition(" ")[0]  # the kernel's boot


def is_this_machine(host: str) -> bool:
    """Whether an address is one of ours."""
    return local_address(host) == host


def local_address(host: str) -> str | None:
    """The address by which we would reach a host; nothing is sent."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((host, DISCARD_PORT))
        except OSError:
            return None
        return str(sock.getsockname()[0])


ONE_STREAM_BYTES_PER_S = 2.5e9  # about what a core puts through one TCP connection, however fast the network
STEP_BYTES = 1 << 20  # copied at once, as the transports do


class LinkLimit(Protocol):
    """What no transport over a link can exceed by much."""

    @property
    def name(self) -> str:
        """In words."""
        ...

    def bytes_per_s(self) -> float:
        """Now; blocks for as long as it takes to measure."""
        ...

    def close(self) -> None:
        """Gives back what it measures with."""
        ...


@dataclass(frozen=True, slots=True)
class RatedLimit:
    """What the hardware says of itself."""

    name: str
    rated_bytes_per_s: float

    def bytes_per_s(self) -> float:
        """As rated."""
        return self.rated_bytes_per_s

    def close(self) -> None:
        """Nothing is held."""


class MemoryCopyLimit:
    """One thread copies from memory to memory."""

    name = "a memory copy"

    def __init__(self, num_bytes: int) -> None:
        self._source = np.ones(num_bytes, np.uint8)
        self._target = np.zeros(num_bytes, np.uint8)

    def bytes_per_s(self) -> float:
        """Measured."""
        started_s = time.perf_counter()
        for start in range(0, len(self._source), STEP_BYTES):
            np.copyto(self._target[start : start + STEP_BYTES], self._source[start : start + STEP_BYTES])
        return len(self._source) / (time.perf_counter() - started_s)

    def close(self) -> None:
        """Nothing is held."""


class LoopbackLimit:
    """A plain socket from a thread to another, within this machine."""

    name = "a loopback socket"

    def __init__(self, num_bytes: int) -> None:
        """Raises OSError where there is no loopback."""
        self._buffer = memoryview(bytearray(num_bytes))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._ours = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
        threading.Thread(target=_send_on_request, args=(theirs, bytes(num_bytes)), daemon=True).start()

    def bytes_per_s(self) -> float:
        """Measured."""
        started_s = time.perf_counter()
        self._ours.sendall(b"?")
        received = 0
        while received < len(self._buffer):
            num_bytes = self._ours.recv_into(self._buffer[received:], 0, socket.MSG_WAITALL)
            if num_bytes == 0:
                raise ConnectionError("the loopback socket was closed")
            received += num_bytes
        return len(self._buffer) / (time.perf_counter() - started_s)

    def close(self) -> None:
        """Ends the connection, and the thread with it."""
        self._ours.close()


def _send_on_request(sock: socket.socket, content: bytes) -> None:
    with sock:
        while sock.recv(1):
            for start in range(0, len(content), STEP_BYTES):
                sock.sendall(content[start : start + STEP_BYTES])


def link_limit(transport: str, peer: PoolDescription, num_bytes: int) -> LinkLimit | None:
    """The limit of a transport to a peer, measured with so many bytes; None where nothing can be said."""
    host = peer_host(peer)
    if transport == shared_memory.NAME or (transport == nixl.NAME and is_same_host(peer)):
        return MemoryCopyLimit(num_bytes)
    if transport == nixl.NAME:
        fastest = max(rdma_ports(), key=lambda port: port.is_active * port.bytes_per_s, default=None)
        return RatedLimit(str(fastest), fastest.bytes_per_s) if fastest and fastest.bytes_per_s else None
    return LoopbackLimit(num_bytes) if host is None or is_this_machine(host) else _network_limit(host)


def _network_limit(host: str) -> RatedLimit | None:
    ours = local_address(host)
    speeds = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == ours for each in addresses) and name in speeds and speeds[name].speed:
            gigabits = speeds[name].speed / 1e3
            return RatedLimit(
                f"one stream over {name} ({gigabits:g} Gb/s)", min(gigabits * 1e9 / 8, ONE_STREAM_BYTES_PER_S)
            )
    return None
