"""The shared-memory transport: peers on one host map each other's pools and copy from them.

The owner passes its pool's file over a Unix socket. The socket stays open, and its end signals that the other side has
ended; the mapping alone would continue to serve a dead peer's pages. A stopped peer has an open socket and readable
pages: reads from it succeed and are correct, since announced blocks are final.
"""

import asyncio
import fcntl
import mmap
import os
import secrets
import socket
import struct
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from baton.kvtransfer import endpoint
from baton.kvtransfer.backend import MAX_READS, Lose
from baton.kvtransfer.base import PeerId, PoolDescription, TransportChoice
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransportUnavailable
from baton.kvtransfer.handshake import Caller, greet
from baton.kvtransfer.listener import Listener, is_open, readable
from baton.kvtransfer.local_pool import LocalPool, Units, runs
from baton.kvtransfer.shared_memory.pool import MADV_POPULATE_READ, SEALS, SharedPool, populate
from baton.kvtransfer.threads import run_in_thread
from baton.kvtransfer.transfers import CopyThreads, Transfer

NAME = "shared_memory"
MAX_STEP_BYTES = 1 << 20  # copied between two checks for an abort; fits a core's private cache
INLINE_BYTES = 128 << 10  # copying this much takes less time than waking a thread


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The abstract Unix socket where an owner listens."""

    host: str  # kernel and network namespace in which the name is valid
    name: str
    key: str


class SharedMemoryBackend:
    """The Backend that maps the pools of other processes on this host."""

    name = NAME
    costs = ""

    def __init__(self, memory: SharedPool, connect_deadline_s: float = 5.0) -> None:
        self.connect_deadline_s = connect_deadline_s
        self._memory = memory
        self._pool: LocalPool | None = None
        self._listener: Listener | None = None
        self._threads = CopyThreads(NAME, max_threads=4)

    def register_pool(self, pool: LocalPool) -> bytes:
        """Listen for peers; see Backend. Raises ValueError for a pool not allocated from the SharedPool."""
        pool.require_host_memory()
        if not self._memory.holds(pool.tensor):
            raise ValueError("the pool is not the tensor that was allocated from the given SharedPool")
        name = f"baton-kv-{secrets.token_hex(8)}"
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(f"\0{name}")
        self._pool = pool
        self._listener = Listener(sock, pool, partial(_pass_memory, self._memory))
        return endpoint.encode(Endpoint(host_id(), name, self._listener.key))

    async def open(self, peer: PoolDescription, units: Units, lose: Lose) -> "SharedMemoryConnection":
        """Map the peer's pool; see Backend."""
        address = endpoint.decode(Endpoint, peer, NAME)
        if address.host != host_id():
            raise TransportUnavailable(f"peer {peer.incarnation} is on another host or in another network namespace")
        try:
            sock = socket.socket(socket.AF_UNIX)
        except OSError as error:  # no descriptor left
            raise TransportUnavailable(f"no socket for peer {peer.incarnation}: {error}") from error
        assert self._pool is not None
        try:
            sock.setblocking(False)
            memory = await _map(sock, address, peer, self._pool)
        except BaseException:
            sock.close()
            raise
        rows = memory.reshape(units.num_remote, units.unit_bytes)
        connection = SharedMemoryConnection(sock, rows, self._pool.in_units(units.unit_bytes), self._threads)
        asyncio.get_running_loop().add_reader(sock.fileno(), lose, PeerId(peer.incarnation), connection)
        return connection

    async def stop(self) -> None:
        """Stop serving; see Backend."""
        if self._listener is not None:
            await self._listener.close()

    async def close(self) -> None:
        """End the threads; see Backend."""
        self._threads.close()


class SharedMemoryConnection:
    """A peer's mapped pool, and a socket whose end signals the peer's; unmapped when the last read has ended."""

    choice = TransportChoice(NAME, "same host")
    max_reads = MAX_READS

    def __init__(
        self, sock: socket.socket, source: NDArray[np.uint8], target: NDArray[np.uint8], threads: CopyThreads
    ) -> None:
        """source: the peer's pool, read-only; target: ours; both [num_units, unit_bytes]."""
        self._sock = sock
        self._source = source
        self._target = target
        self._threads = threads

    def is_open(self) -> bool:
        """Return whether the peer still runs; the mapping alone would serve its pages forever."""
        return is_open(self._sock)

    def start(self, transfer: Transfer) -> "asyncio.Future[None]":
        """Copy in a thread, or on the event loop up to 128 KiB; see Connection."""
        if len(transfer.local) * self._target.shape[1] > INLINE_BYTES:
            return self._threads.run(transfer, partial(self._copy, transfer))
        self._copy(transfer)
        copied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        copied.set_result(None)
        return copied

    def close(self) -> None:
        """Close the socket."""
        asyncio.get_running_loop().remove_reader(self._sock.fileno())
        self._sock.close()

    def _copy(self, transfer: Transfer) -> None:
        step = max(1, MAX_STEP_BYTES // self._target.shape[1])
        for run in runs(transfer.remote, transfer.local, step):
            transfer.check()
            source = self._source[run.remote : run.remote + run.num_units]
            np.copyto(self._target[run.local : run.local + run.num_units], source)
            transfer.landed(run.num_units)


async def _map(sock: socket.socket, address: Endpoint, peer: PoolDescription, pool: LocalPool) -> NDArray[np.uint8]:
    """Greet the peer, and return its mapped pool."""
    try:
        await asyncio.get_running_loop().sock_connect(sock, f"\0{address.name}")
    except OSError as error:
        raise PeerLost(f"peer {peer.incarnation} no longer listens: {error}") from error
    except ValueError as error:
        raise PeerRefused(f"peer {peer.incarnation} has a garbled address: {error}") from error
    await greet(sock, pool, peer, address.key)
    fd = await _receive_fd(sock, peer)
    mapping = map_blocks(fd, peer)
    # The first access to a page can cost as much as copying it. This takes 10 to 30 ms for 256 MiB and runs in the
    # background: waiting for it would cost reads that start at once as much as it saves them.
    run_in_thread("baton-kv-populate", partial(populate, mapping, MADV_POPULATE_READ))
    return np.frombuffer(mapping, np.uint8)


async def _pass_memory(memory: SharedPool, sock: socket.socket, _caller: Caller) -> None:
    """Pass the pool's file to an admitted caller and wait until it disconnects."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    if uid != os.getuid():
        sock.send(b"u")  # refusal: processes of other users must not read this memory
        return
    # The descriptor is read-only, and the seal forbids writes through a reopened file.
    fd = os.open(f"/proc/self/fd/{memory.fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        socket.send_fds(sock, [b"m"], [fd])
    finally:
        os.close(fd)
    await asyncio.get_running_loop().sock_recv(sock, 1)  # the reader sends nothing more, so this returns at its end


async def _receive_fd(sock: socket.socket, peer: PoolDescription) -> int:
    await readable(sock)
    try:
        message, fds, _, _ = socket.recv_fds(sock, 1, 1)
    except OSError as error:
        raise PeerLost(f"peer {peer.incarnation} closed the connection: {error}") from error
    if message == b"m" and fds:
        return fds[0]
    for fd in fds:  # unexpected descriptors must still be closed
        os.close(fd)
    if message == b"u":
        raise TransportUnavailable(f"peer {peer.incarnation} runs as another user")
    raise PeerLost(f"peer {peer.incarnation} ended before it passed its memory")


def map_blocks(fd: int, peer: PoolDescription) -> mmap.mmap:
    """Map a peer's pool read-only and close `fd`. Raises PeerRefused if the file does not match the description."""
    num_bytes = peer.num_blocks * peer.block_bytes
    try:
        if os.fstat(fd).st_size != num_bytes or fcntl.fcntl(fd, fcntl.F_GET_SEALS) & SEALS != SEALS:
            raise PeerRefused(f"peer {peer.incarnation} passed a file that is not a sealed pool of {num_bytes} bytes")
        return mmap.mmap(fd, num_bytes, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise PeerRefused(f"peer {peer.incarnation} passed a file that is not a pool: {error}") from error
    finally:
        os.close(fd)


def host_id() -> str:
    """Return the boot id and the network namespace: together the scope of an abstract Unix socket's name."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')}"
