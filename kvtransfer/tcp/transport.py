"""The TCP transport between any two hosts: from one pool's memory directly into the other's.

A connection carries one read at a time, with one thread on either side. Closing it aborts the read: once the reading
thread has ended, nothing of that read can land any more.
"""

import asyncio
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from baton.kvtransfer import endpoint
from baton.kvtransfer.base import Landed, PeerId, PoolDescription, PoolIdentity, TransportChoice, ignore_landed
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransferDeadline
from baton.kvtransfer.listener import Listener
from baton.kvtransfer.local_pool import LocalPool
from baton.kvtransfer.quarantine import Quarantine
from baton.kvtransfer.tcp import frames as tcp_frames
from baton.kvtransfer.tcp.connection import listening_socket, open_connection
from baton.kvtransfer.tcp.server import serve_reader
from baton.kvtransfer.transfers import Connections, CopyThreads, Transfer, Transfers
from baton.kvtransfer.units import Units

NAME = "tcp"
MAX_IDLE_CONNECTIONS = 4  # per peer
MAX_READS = 64  # at once; further reads wait for a thread
MAX_PEER_READS = 8  # at once per peer, so that an unresponsive peer does not occupy all threads


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address where an owner listens."""

    host: str
    port: int
    key: str


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """A peer and its idle connections, whose end signals the peer's end."""

    description: PoolDescription
    units: Units
    address: Endpoint
    idle: list[socket.socket] = field(default_factory=list)
    reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_PEER_READS))

    @property
    def peer_id(self) -> PeerId:
        """The peer's incarnation."""
        return PeerId(self.description.incarnation)


class TcpTransport:
    """KVTransport over TCP, with one connection per concurrent read."""

    def __init__(
        self,
        identity: PoolIdentity,
        host: str,
        quarantine: Quarantine | None = None,
        connect_deadline_s: float = 5.0,
        port: int = 0,
    ) -> None:
        """`port`: listens here for peers, 0: any free port."""
        self.quarantine = quarantine if quarantine is not None else Quarantine()
        self._identity = identity
        self._host = host
        self._port = port
        self._pool: LocalPool | None = None
        self._listener: Listener | None = None
        self._transfers = Transfers(self.quarantine)
        self._connections: Connections[Peer] = Connections(connect_deadline_s, self._transfers, self._dispose)
        self._threads = CopyThreads(NAME, MAX_READS)

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """TCP, for every connected peer."""
        return {peer: TransportChoice(NAME, "works between any two hosts") for peer in self._connections.peers()}

    def register_pool(self, pool: Tensor) -> PoolDescription:
        """Listen for peers; see KVTransport. Raises OSError if the given port is not available."""
        self._pool = LocalPool.of(pool, self._identity)
        sock = listening_socket(self._host, self._port)
        host, port = sock.getsockname()[:2]
        address = Endpoint(host, port, secrets.token_hex(16))
        self._listener = Listener(sock, self._pool, address.key, partial(serve_reader, self._pool))
        return self._pool.describe(NAME, endpoint.encode(address))

    async def connect(self, peer: PoolDescription) -> PeerId:
        """Open a first connection; see KVTransport."""
        units = self._require_pool().units(peer)
        peer_id = PeerId(peer.incarnation)
        await self._connections.ensure(peer_id, lambda: self._connect(peer, units))
        return peer_id

    async def read(
        self,
        peer: PeerId,
        remote: Sequence[int],
        local: Sequence[int],
        deadline_s: float,
        landed: Landed = ignore_landed,
    ) -> None:
        """Receive in a thread; see KVTransport."""
        connected = self._connections.get(peer)
        connected.units.check(peer, remote, local)
        if not local:
            return
        end_s = asyncio.get_running_loop().time() + deadline_s
        try:
            async with asyncio.timeout_at(end_s):
                await connected.reads.acquire()
        except TimeoutError as error:
            raise TransferDeadline(f"peer {peer} is still busy with {MAX_PEER_READS} earlier reads") from error
        try:
            await self._read(connected, remote, local, end_s, landed)
        finally:
            connected.reads.release()

    async def _read(
        self, connected: Peer, remote: Sequence[int], local: Sequence[int], end_s: float, landed: Landed
    ) -> None:
        peer = connected.peer_id
        clock = asyncio.get_running_loop().time
        sock = await self._take(connected, end_s - clock())
        if not self._connections.is_current(peer, connected):
            sock.close()
            raise PeerLost(f"peer {peer} was forgotten")
        units, memory = connected.units, self._require_pool().memory()

        def copy(transfer: Transfer) -> None:
            try:
                tcp_frames.send_request(sock, remote)
                buffers = tcp_frames.unit_buffers(memory, units.unit_bytes, local)
                for buffer in tcp_frames.receive_response(sock, buffers):
                    landed(len(buffer) // units.unit_bytes)
                    transfer.check()
            except (OSError, PeerLost) as error:
                transfer.check()
                raise PeerLost(f"peer {peer} broke the connection: {error}") from error

        def interrupt() -> None:
            with suppress(OSError):  # the peer may have closed it first
                sock.shutdown(socket.SHUT_RDWR)

        try:
            remaining_s = max(0.0, end_s - clock())
            await self._transfers.run(
                peer,
                units.local_blocks(local),
                self._threads.starter(copy),
                remaining_s,
                interrupt,
                lambda clean: self._give_back(connected, sock, clean),
            )
        except PeerLost:
            self._connections.lose(peer, connected)
            raise

    def forget(self, peer: PeerId) -> None:
        """Close the connections to the peer; see KVTransport."""
        self._connections.forget(peer)

    async def close(self) -> None:
        """Close every connection; see KVTransport."""
        if self._listener is not None:
            await self._listener.close()
        await self._connections.close()
        await self._transfers.close()
        self._threads.close()

    def _require_pool(self) -> LocalPool:
        if self._pool is None:
            raise ValueError("no pool was registered")
        return self._pool

    async def _connect(self, peer: PoolDescription, units: Units) -> Peer:
        connected = Peer(peer, units, endpoint.decode(Endpoint, peer, NAME))
        self._keep(connected, await self._open(connected))
        return connected

    async def _open(self, peer: Peer) -> socket.socket:
        address = peer.address
        sock = await open_connection(address.host, address.port, address.key, self._require_pool(), peer.description)
        sock.setblocking(True)
        return sock

    async def _take(self, peer: Peer, deadline_s: float) -> socket.socket:
        """Return an idle connection, or open a new one within `deadline_s` seconds."""
        if peer.idle:
            sock = peer.idle.pop()
            asyncio.get_running_loop().remove_reader(sock.fileno())
            sock.setblocking(True)  # uvloop makes every socket that it watches non-blocking
            return sock
        try:
            async with asyncio.timeout(deadline_s):
                return await self._open(peer)
        except TimeoutError as error:
            raise TransferDeadline(f"peer {peer.peer_id} did not respond") from error
        except (PeerLost, PeerRefused):
            self._connections.lose(peer.peer_id, peer)
            raise

    def _give_back(self, peer: Peer, sock: socket.socket, clean: bool) -> None:
        is_current = self._connections.is_current(peer.peer_id, peer)
        if clean and is_current and len(peer.idle) < MAX_IDLE_CONNECTIONS:
            self._keep(peer, sock)
        else:
            sock.close()

    def _keep(self, peer: Peer, sock: socket.socket) -> None:
        peer.idle.append(sock)
        asyncio.get_running_loop().add_reader(sock.fileno(), self._connections.lose, peer.peer_id, peer)

    def _dispose(self, _: PeerId, connected: Peer) -> None:
        while connected.idle:
            sock = connected.idle.pop()
            asyncio.get_running_loop().remove_reader(sock.fileno())
            sock.close()
