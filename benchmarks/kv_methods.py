"""Methods to move blocks between processes, and baselines."""

import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from baton.kvtransfer.base import KVTransport, PeerId


@dataclass(frozen=True, slots=True)
class Method:
    """A method to move the peer's blocks `remote` into the local blocks `local`."""

    name: str
    move: Callable[[list[int], list[int]], Awaitable[None]]


def memcpy(source: NDArray[np.uint8], target: NDArray[np.uint8]) -> Method:
    """Copy block by block within this process, on one thread."""

    async def move(remote: list[int], local: list[int]) -> None:
        for theirs, ours in zip(remote, local, strict=True):
            np.copyto(target[ours], source[theirs])

    return Method("memcpy", move)


def raw_socket(address: tuple[str, int], target: NDArray[np.uint8]) -> Method:
    """Receive block by block from a plain socket, on this thread."""
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def move(remote: list[int], local: list[int]) -> None:
        sock.sendall(len(remote).to_bytes(4, "little") + np.asarray(remote, np.uint32).tobytes())
        for block in local:
            received = sock.recv_into(target[block], 0, socket.MSG_WAITALL)
            assert received == target.shape[1]

    return Method("raw socket", move)


def transport_method(name: str, transport: KVTransport, peer: PeerId) -> Method:
    """Read through a transport, as a worker does."""

    async def move(remote: list[int], local: list[int]) -> None:
        await transport.read(peer, remote, local, 60.0)

    return Method(name, move)


def serve_raw(listener: socket.socket, blocks: NDArray[np.uint8]) -> None:
    """Send the blocks whose ids are received, over a plain socket."""
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while header := sock.recv(4, socket.MSG_WAITALL):
        ids = np.frombuffer(sock.recv(int.from_bytes(header, "little") * 4, socket.MSG_WAITALL), np.uint32)
        for block in ids:
            sock.sendall(blocks[block])


def copy_limit(source: NDArray[np.uint8], target: NDArray[np.uint8]) -> float:
    """Return the GB/s that all cores together copy, best of several: the machine's memory bandwidth."""
    num_threads = os.cpu_count() or 1
    parts = np.array_split(np.arange(source.shape[0]), num_threads)
    best_s = float("inf")
    for _ in range(5):
        threads = [
            threading.Thread(target=np.copyto, args=(target[part[0] : part[-1] + 1], source[part[0] : part[-1] + 1]))
            for part in parts
            if len(part)
        ]
        started_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best_s = min(best_s, time.perf_counter() - started_s)
    return float(source.nbytes / best_s / 1e9)
