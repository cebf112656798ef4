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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from baton.kvtransfer import endpoint
from baton.kvtransfer.base import Landed, PeerId, PoolDescription, PoolIdentity, TransportChoice, ignore_landed
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransportUnavailable
from baton.kvtransfer.handshake import Caller, greet
from baton.kvtransfer.listener import Listener, is_open, readable
from baton.kvtransfer.local_pool import LocalPool, runs
from baton.kvtransfer.quarantine import Quarantine
from baton.kvtransfer.shared_memory.pool import MADV_POPULATE_READ, SEALS, SharedPool, populate
from baton.kvtransfer.threads import run_in_thread
from baton.kvtransfer.transfers import Connections, CopyThreads, Transfer, Transfers
from baton.kvtransfer.units import Units

__all__ = ["SharedMemoryTransport", "SharedPool"]

NAME = "shared_memory"
MAX_STEP_BYTES = 1 << 20  # copied between two checks for an abort; fits a core's private cache
INLINE_BYTES = 128 << 10  # copying this much takes less time than waking a thread


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The abstract Unix socket where an owner listens."""

    host: str  # kernel and network namespace in which the name is valid
    name: str
    key: str


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer's mapped pool; unmapped when the last read that uses it has ended."""

    units: Units
    sock: socket.socket
    memory: NDArray[np.uint8]  # [num_remote, unit_bytes], read-only


class SharedMemoryTransport:
    """KVTransport that maps the pools of other processes on this host."""

    def __init__(
        self,
        identity: PoolIdentity,
        memory: SharedPool,
        quarantine: Quarantine | None = None,
        connect_deadline_s: float = 5.0,
    ) -> None:
        self.quarantine = quarantine if quarantine is not None else Quarantine()
        self._identity = identity
        self._memory = memory
        self._pool: LocalPool | None = None
        self._listener: Listener | None = None
        self._transfers = Transfers(self.quarantine)
        self._connections: Connections[Peer] = Connections(connect_deadline_s, self._transfers, self._dispose)
        self._threads = CopyThreads(NAME, max_threads=4)

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """Shared memory, for every connected peer."""
        return {peer: TransportChoice(NAME, "same host") for peer in self._connections.peers()}

    def register_pool(self, pool: Tensor) -> PoolDescription:
        """Listen for peers; see KVTransport. Raises ValueError for a pool not allocated from the SharedPool."""
        self._pool = LocalPool.of(pool, self._identity)
        if not self._memory.holds(pool):
            raise ValueError("the pool is not the tensor that was allocated from the given SharedPool")
        address = Endpoint(host_id(), f"baton-kv-{secrets.token_hex(8)}", secrets.token_hex(16))
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(f"\0{address.name}")
        self._listener = Listener(sock, self._pool, address.key, partial(_pass_memory, self._memory))
        return self._pool.describe(NAME, endpoint.encode(address))

    async def connect(self, peer: PoolDescription) -> PeerId:
        """Map the peer's pool; see KVTransport."""
        units = self._require_pool().units(peer)
        peer_id = PeerId(peer.incarnation)
        await self._connections.ensure(peer_id, lambda: self._open(peer, units))
        return peer_id

    async def read(
        self,
        peer: PeerId,
        remote: Sequence[int],
        local: Sequence[int],
        deadline_s: float,
        landed: Landed = ignore_landed,
    ) -> None:
        """Copy in a thread, or on the event loop up to 128 KiB; see KVTransport."""
        connection = self._connections.get(peer)
        units = connection.units
        units.check(peer, remote, local)
        target = self._require_pool().in_units(units.unit_bytes)
        step = max(1, MAX_STEP_BYTES // units.unit_bytes)

        def copy(transfer: Transfer | None) -> None:
            for run in runs(remote, local, step):
                if transfer is not None:
                    transfer.check()
                source = connection.memory[run.remote : run.remote + run.num_units]
                np.copyto(target[run.local : run.local + run.num_units], source)
                landed(run.num_units)

        if len(local) * units.unit_bytes <= INLINE_BYTES:
            copy(None)
        else:
            await self._transfers.run(peer, units.local_blocks(local), self._threads.starter(copy), deadline_s)
        if self._connections.is_current(peer, connection) and not is_open(connection.sock):
            self._connections.lose(peer, connection)
        if not self._connections.is_current(peer, connection):
            raise PeerLost(f"peer {peer} ended during the read")

    def forget(self, peer: PeerId) -> None:
        """Drop the mapping; see KVTransport."""
        self._connections.forget(peer)

    async def close(self) -> None:
        """Stop serving and reading; see KVTransport."""
        if self._listener is not None:
            await self._listener.close()
        await self._connections.close()
        await self._transfers.close()
        self._threads.close()

    def _require_pool(self) -> LocalPool:
        if self._pool is None:
            raise ValueError("no pool was registered")
        return self._pool

    async def _open(self, peer: PoolDescription, units: Units) -> Peer:
        address = endpoint.decode(Endpoint, peer, NAME)
        if address.host != host_id():
            raise TransportUnavailable(f"peer {peer.incarnation} is on another host or in another network namespace")
        try:
            sock = socket.socket(socket.AF_UNIX)
        except OSError as error:  # no descriptor left
            raise TransportUnavailable(f"no socket for peer {peer.incarnation}: {error}") from error
        try:
            sock.setblocking(False)
            memory = await self._map(sock, address, peer)
        except BaseException:
            sock.close()
            raise
        connection = Peer(units, sock, memory.reshape(units.num_remote, units.unit_bytes))
        loop, lose = asyncio.get_running_loop(), self._connections.lose
        loop.add_reader(sock.fileno(), lose, PeerId(peer.incarnation), connection)
        return connection

    async def _map(self, sock: socket.socket, address: Endpoint, peer: PoolDescription) -> NDArray[np.uint8]:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(sock, f"\0{address.name}")
        except OSError as error:
            raise PeerLost(f"peer {peer.incarnation} no longer listens: {error}") from error
        except ValueError as error:
            raise PeerRefused(f"peer {peer.incarnation} has a garbled address: {error}") from error
        await greet(sock, self._require_pool(), peer, address.key)
        fd = await _receive_fd(sock, peer)
        mapping = map_blocks(fd, peer)
        # The first access to a page can cost as much as copying it. This takes 10 to 30 ms for 256 MiB and runs in the
        # background: waiting for it would cost reads that start at once as much as it saves them.
        run_in_thread("baton-kv-populate", partial(populate, mapping, MADV_POPULATE_READ))
        return np.frombuffer(mapping, np.uint8)

    def _dispose(self, _: PeerId, connection: Peer) -> None:
        asyncio.get_running_loop().remove_reader(connection.sock.fileno())
        connection.sock.close()


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
