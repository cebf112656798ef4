"""Two processes' GPUs by NCCL: the owner's processor and GPU take part in every read, so it is called two-sided.

It is the second choice, behind NIXL, whose reads need nobody's help. What follows from that:

- A peer that is stopped sends nothing, and NCCL's kernel waits on our GPU for as long: reads have deadlines, and one
  that was given up lets what it has asked for come, or aborts the communicator, which ends the connection.
- What comes is received beside the pool and copied into it only then. So after an abort nothing can land in a block
  once the read's own thread has ended; the quarantine follows that.
- Reads from one peer go one after the other: a communicator is one line. It is kept after a read only if nothing that
  was asked for is still to come.
- Making a communicator has no deadline in NCCL, so it has one here; with a peer that let it pass none is made again.

The same between pools in host memory goes over gloo. It is what the tests run; tcp is better for service.
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from baton.kvtransfer import endpoint
from baton.kvtransfer.auto import Refusals
from baton.kvtransfer.base import Landed, PeerId, PoolDescription, PoolIdentity, TransportChoice, nobody
from baton.kvtransfer.cuda_streams import SideStreams
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransferDeadline, TransportUnavailable, first_line
from baton.kvtransfer.listener import Listener, is_open
from baton.kvtransfer.local_pool import LocalPool
from baton.kvtransfer.nccl.communicator import (
    READER,
    PairGroup,
    load_kernels,
    nccl_type,
    peers_store,
    require_blocking_wait,
)
from baton.kvtransfer.nccl.communicator_factory import END_S, CommunicatorFactory
from baton.kvtransfer.nccl.communicator_limit import CommunicatorLimit
from baton.kvtransfer.nccl.owner import NO_STORE, PairOwner
from baton.kvtransfer.nccl.read import PairRead
from baton.kvtransfer.quarantine import Quarantine
from baton.kvtransfer.staged.control import receive_word
from baton.kvtransfer.tcp.connection import listening_socket, open_connection
from baton.kvtransfer.transfers import Connections, Transfer, Transfers
from baton.kvtransfer.units import Units

logger = logging.getLogger(__name__)

NAME = "nccl"
GLOO = "gloo"
CHUNK_BYTES = 8 << 20  # sent at once
CHUNK_TIMEOUT_S = 5.0  # for that; and for two sides to connect
GRACE_S = 0.5  # for what was asked for to come, before a read that was given up aborts the communicator
MAKING_SHARE = 2 / 3  # of the deadline for connecting
MAX_PORT = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an owner listens."""

    host: str
    port: int
    key: str
    chunk_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """A peer, the connection that carries words, and the communicator that carries units."""

    description: PoolDescription
    units: Units
    chunk_bytes: int
    sock: socket.socket
    group: PairGroup
    line: asyncio.Lock = field(default_factory=asyncio.Lock)  # one read at a time

    @property
    def peer_id(self) -> PeerId:
        """The peer's incarnation."""
        return PeerId(self.description.incarnation)


class PairTransport:
    """Reads pools by NCCL, or gloo, over a communicator for each peer."""

    def __init__(
        self,
        identity: PoolIdentity,
        host: str,
        quarantine: Quarantine | None = None,
        connect_deadline_s: float = 15.0,
        port: int = 0,
        backend: str = NAME,
        chunk_timeout_s: float = CHUNK_TIMEOUT_S,
    ) -> None:
        """`port`: where peers greet; 0: any free one; `backend`: nccl, or gloo for pools in host memory.

        Raises TransportUnavailable in a torch without NCCL, or one that was told to end the process when NCCL is late.
        """
        if backend == NAME:
            nccl_type()
            require_blocking_wait()
        self.quarantine = quarantine if quarantine is not None else Quarantine()
        self._identity = identity
        self._host = host
        self._port = port
        self._backend = backend
        self._chunk_timeout_s = chunk_timeout_s
        self._making_deadline_s = connect_deadline_s * MAKING_SHARE
        self._pool: LocalPool | None = None
        self._owner: PairOwner | None = None
        self._listener: Listener | None = None
        self._streams: SideStreams | None = None
        self._transfers = Transfers(self.quarantine)
        self._connections: Connections[Peer] = Connections(connect_deadline_s, self._transfers, self._dispose)
        self._making = CommunicatorFactory()
        self._seats = CommunicatorLimit()
        self._too_late = Refusals(retry_s=None)

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """This, for every connected peer."""
        reason = "two-sided: the peer's processor sends"
        return {peer: TransportChoice(self._backend, reason) for peer in self._connections.peers()}

    def register_pool(self, pool: Tensor) -> PoolDescription:
        """Listens for peers; see KVTransport. Raises OSError if the given port cannot be had."""
        is_nccl = self._backend == NAME
        local = LocalPool.of(pool, self._identity, on_gpu=is_nccl)
        if is_nccl and not pool.is_cuda:
            raise TransportUnavailable(f"NCCL moves GPU memory, this pool is on {pool.device}")
        if pool.is_cuda:
            load_kernels(local.rows(local.block_bytes))
        self._pool = local
        self._streams = SideStreams(pool.device)
        sock = listening_socket(self._host, self._port)
        host, port = sock.getsockname()[:2]
        address = Endpoint(host, port, secrets.token_hex(16), CHUNK_BYTES)
        self._owner = PairOwner(local, self._host, self._chunk_timeout_s, CHUNK_BYTES, self._streams)
        self._listener = Listener(sock, local, address.key, self._owner.serve)
        return local.describe(self._backend, endpoint.encode(address))

    async def connect(self, peer: PoolDescription) -> PeerId:
        """Greets the peer and makes the communicator; see KVTransport."""
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
        landed: Landed = nobody,
    ) -> None:
        """Receives chunk by chunk; see KVTransport."""
        connected = self._connections.get(peer)
        connected.units.check(peer, remote, local)
        if not local:
            return
        end_s = asyncio.get_running_loop().time() + deadline_s
        try:
            async with asyncio.timeout_at(end_s):
                await connected.line.acquire()
        except TimeoutError as error:
            raise TransferDeadline(f"peer {peer} has reads to answer that were before") from error
        await self._read(connected, remote, local, end_s, landed)
        if not self._connections.is_current(peer, connected):
            raise PeerLost(f"peer {peer} ended during the read")

    async def _read(
        self, connected: Peer, remote: Sequence[int], local: Sequence[int], end_s: float, landed: Landed
    ) -> None:
        """With the line, which is free again when the read has really ended."""
        peer, units = connected.peer_id, connected.units
        loop = asyncio.get_running_loop()
        if not self._connections.is_current(peer, connected):
            connected.line.release()
            raise PeerLost(f"peer {peer} was forgotten")
        step = max(1, min(connected.chunk_bytes, CHUNK_BYTES) // units.unit_bytes)
        rows = self._require_pool().rows(units.unit_bytes)
        lose = partial(self._connections.lose, peer, connected)
        timers: list[asyncio.TimerHandle] = []
        reads: list[PairRead] = []

        def start(transfer: Transfer) -> "asyncio.Future[None]":
            reads.append(PairRead(connected.sock, connected.group, rows, step, transfer, landed))
            return loop.create_task(reads[0].run(remote, local))

        def interrupt() -> None:
            timers.append(loop.call_later(GRACE_S, lose))

        def ended(_: bool) -> None:
            for timer in timers:
                timer.cancel()
            if not reads.pop().leaves_nothing:  # before anybody else has the line
                lose()
            self._seats.rest(peer)
            connected.line.release()

        held = units.local_blocks(local)
        self._seats.use(peer)
        try:
            await self._transfers.run(peer, held, start, max(0.0, end_s - loop.time()), interrupt, ended)
        except PeerLost:
            lose()
            raise

    def forget(self, peer: PeerId) -> None:
        """Ends the communicator; see KVTransport."""
        self._connections.forget(peer)

    async def close(self) -> None:
        """Ends every communicator; see KVTransport."""
        if self._listener is not None:
            await self._listener.close()
        await self._connections.close()
        try:
            async with asyncio.timeout(END_S):
                await self._transfers.close()
        except TimeoutError:  # nothing lands any more: what comes over an aborted communicator is dropped
            logger.warning("reads over %s do not end; their threads are left behind", self._backend)
        for making in (self._making, self._owner.making if self._owner is not None else self._making):
            await making.all_ended()

    def _require_pool(self) -> LocalPool:
        if self._pool is None:
            raise ValueError("no pool was registered")
        return self._pool

    async def _open(self, peer: PoolDescription, units: Units) -> Peer:
        address, peer_id = endpoint.decode(Endpoint, peer, self._backend), PeerId(peer.incarnation)
        if (reason := self._too_late.reason(self._backend, peer_id)) is not None:
            raise TransportUnavailable(reason)
        self._seats.take(peer_id, lambda: self.forget(peer_id))
        try:
            sock = await open_connection(address.host, address.port, address.key, self._require_pool(), peer)
            try:
                group = await self._group_with(sock, address.host, peer_id)
            except BaseException:
                sock.close()
                raise
        except BaseException:
            self._seats.leave(peer_id)
            raise
        connected = Peer(peer, units, address.chunk_bytes, sock, group)
        self._seats.rest(peer_id)
        loop, lose = asyncio.get_running_loop(), self._connections.lose
        loop.add_reader(sock.fileno(), lose, peer_id, connected)  # it says nothing more
        return connected

    async def _group_with(self, sock: socket.socket, host: str, peer: PeerId) -> PairGroup:
        """A communicator with who is at the other end. Raises TransportUnavailable if it is there and that is not."""
        try:
            port = await receive_word(sock)
            if port == NO_STORE:
                raise TransportUnavailable(f"peer {peer} has no communicator to spare")
            if port > MAX_PORT:
                raise PeerRefused(f"peer {peer} says that it listens on port {port}")
            async with asyncio.timeout(self._making_deadline_s):
                return await self._make_group(host, port)
        except (OSError, RuntimeError) as error:
            if not is_open(sock):
                raise PeerLost(f"peer {peer} ended while it was being connected: {first_line(error)}") from error
            reason = f"no communicator with peer {peer}: {first_line(error)}"
            if isinstance(error, TimeoutError):
                reason = f"no communicator with peer {peer} within {self._making_deadline_s:g} s"
                self._too_late.note(self._backend, peer, reason)
            raise TransportUnavailable(reason) from error

    async def _make_group(self, host: str, port: int) -> PairGroup:
        device, timeout_s, streams = self._require_pool().tensor.device, self._chunk_timeout_s, self._streams
        assert streams is not None

        def make() -> PairGroup:
            return PairGroup(peers_store(host, port, timeout_s), READER, self._host, device, timeout_s, streams)

        return await self._making.make(make)

    def _dispose(self, peer: PeerId, connected: Peer) -> None:
        self._seats.leave(peer)
        asyncio.get_running_loop().remove_reader(connected.sock.fileno())
        connected.sock.close()
        self._making.end(connected.group)
