"""Any two hosts: blocks over TCP, out of one pool's memory and straight into the other's.

A connection carries one read at a time, in a thread of its own on either side. Closing it really aborts: once the
reading thread has ended, nothing of that read can land any more.
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
from baton.kvtransfer.base import Landed, PeerId, PoolDescription, PoolIdentity, TransportChoice, nobody
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
MAX_IDLE_CONNECTIONS = 4  # a peer
MAX_READS = 64  # at once; more wait for a thread
MAX_PEER_READS = 8  # of one peer, so that one that does not answer leaves threads to the others


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an owner listens."""

    host: str
    port: int
    key: str


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """A peer and the connections to it that no read uses just now; their end is how its end is noticed."""

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
    """Reads pools over TCP connections, as many a peer as there are reads at once."""

    def __init__(
        self,
        identity: PoolIdentity,
        host: str,
        quarantine: Quarantine | None = None,
        connect_deadline_s: float = 5.0,
        port: int = 0,
    ) -> None:
        """`port`: where peers read; 0: any free one."""
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
        """Listens for peers; see KVTransport. Raises OSError if the given port cannot be had."""
        self._pool = LocalPool.of(pool, self._identity)
        sock = listening_socket(self._host, self._port)
        host, port = sock.getsockname()[:2]
        address = Endpoint(host, port, secrets.token_hex(16))
        self._listener = Listener(sock, self._pool, address.key, partial(serve_reader, self._pool))
        return self._pool.describe(NAME, endpoint.encode(address))

    async def connect(self, peer: PoolDescription) -> PeerId:
        """Opens a first connection; see KVTransport."""
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
        landed: Landed = nobody,
    ) -> None:
        """Receives in a thread; see KVTransport."""
        connected = self._connections.get(peer)
        connected.units.check(peer, remote, local)
        if not local:
            return
        end_s = asyncio.get_running_loop().time() + deadline_s
        try:
            async with asyncio.timeout_at(end_s):
                await connected.reads.acquire()
        except TimeoutError as error:
            raise TransferDeadline(f"peer {peer} has {MAX_PEER_READS} reads to answer that were before") from error
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
        """Closes the connections to the peer; see KVTransport."""
        self._connections.forget(peer)

    async def close(self) -> None:
        """Closes every connection; see KVTransport."""
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
        """A connection that no read uses: an idle one, else a new one."""
        if peer.idle:
            sock = peer.idle.pop()
            asyncio.get_running_loop().remove_reader(sock.fileno())
            sock.setblocking(True)  # a loop on libuv makes whatever it watches non-blocking
            return sock
        try:
            async with asyncio.timeout(deadline_s):
                return await self._open(peer)
        except TimeoutError as error:
            raise TransferDeadline(f"peer {peer.peer_id} did not answer") from error
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
