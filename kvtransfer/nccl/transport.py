"""The NCCL transport between the GPUs of two processes. Reads are two-sided: the owner's CPU and GPU take part.

It is the second choice after NIXL, whose reads are one-sided. Two-sided reads have these consequences:

- A stopped peer sends nothing, and NCCL's kernel occupies our GPU while it waits. So reads have deadlines; an aborted
  read drains the chunks that it has requested, or else aborts the communicator, which ends the connection.
- Chunks are received into a buffer and then copied into the pool. So after an abort nothing can land in a block once
  the read's thread has ended; the quarantine lasts until then.
- Reads from one peer are serialised, since a communicator is one ordered stream. It is kept after a read only if no
  requested chunk is outstanding.
- NCCL has no deadline for creating a communicator, so this module adds one. A peer that misses it is not tried again.

Between pools in host memory the same code runs over gloo. The tests use it; in production tcp is better.
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
from baton.kvtransfer.base import Landed, PeerId, PoolDescription, PoolIdentity, TransportChoice, ignore_landed
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
CHUNK_BYTES = 8 << 20  # per message
CHUNK_TIMEOUT_S = 5.0  # for one chunk, and for the two sides to connect
GRACE_S = 0.5  # for an aborted read to drain its requested chunks before the communicator is aborted
MAKING_SHARE = 2 / 3  # share of the connect deadline for creating the communicator
MAX_PORT = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address where an owner listens."""

    host: str
    port: int
    key: str
    chunk_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """A peer, the connection that carries requests, and the communicator that carries units."""

    description: PoolDescription
    units: Units
    chunk_bytes: int
    sock: socket.socket
    group: PairGroup
    read_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one read at a time

    @property
    def peer_id(self) -> PeerId:
        """The peer's incarnation."""
        return PeerId(self.description.incarnation)


class PairTransport:
    """KVTransport over NCCL or gloo, with one communicator per peer."""

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
        """`port`: listens here for peers, 0: any free port; `backend`: nccl, or gloo for pools in host memory.

        `chunk_timeout_s`: for each chunk. Raises TransportUnavailable if torch has no NCCL, or is configured to end the
        process when NCCL is late.
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
        self._factory = CommunicatorFactory()
        self._limit = CommunicatorLimit()
        self._timed_out = Refusals(retry_s=None)

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """NCCL or gloo, for every connected peer."""
        reason = "two-sided: the peer's CPU sends"
        return {peer: TransportChoice(self._backend, reason) for peer in self._connections.peers()}

    def register_pool(self, pool: Tensor) -> PoolDescription:
        """Listen for peers; see KVTransport. Raises OSError if the given port is not available."""
        is_nccl = self._backend == NAME
        local = LocalPool.of(pool, self._identity, on_gpu=is_nccl)
        if is_nccl and not pool.is_cuda:
            raise TransportUnavailable(f"NCCL transfers GPU memory, this pool is on {pool.device}")
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
        """Greet the peer and create the communicator; see KVTransport."""
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
        """Receive chunk by chunk; see KVTransport."""
        connected = self._connections.get(peer)
        connected.units.check(peer, remote, local)
        if not local:
            return
        end_s = asyncio.get_running_loop().time() + deadline_s
        try:
            async with asyncio.timeout_at(end_s):
                await connected.read_lock.acquire()
        except TimeoutError as error:
            raise TransferDeadline(f"peer {peer} is still busy with earlier reads") from error
        await self._read(connected, remote, local, end_s, landed)
        if not self._connections.is_current(peer, connected):
            raise PeerLost(f"peer {peer} ended during the read")

    async def _read(
        self, connected: Peer, remote: Sequence[int], local: Sequence[int], end_s: float, landed: Landed
    ) -> None:
        """Read while holding the read lock, which is released when the read has really ended."""
        peer, units = connected.peer_id, connected.units
        loop = asyncio.get_running_loop()
        if not self._connections.is_current(peer, connected):
            connected.read_lock.release()
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
            if not reads.pop().is_drained:  # before the next read acquires the lock
                lose()
            self._limit.mark_idle(peer)
            connected.read_lock.release()

        held = units.local_blocks(local)
        self._limit.mark_busy(peer)
        try:
            await self._transfers.run(peer, held, start, max(0.0, end_s - loop.time()), interrupt, ended)
        except PeerLost:
            lose()
            raise

    def forget(self, peer: PeerId) -> None:
        """Close the connection and abort the communicator; see KVTransport."""
        self._connections.forget(peer)

    async def close(self) -> None:
        """Abort every communicator; see KVTransport."""
        if self._listener is not None:
            await self._listener.close()
        await self._connections.close()
        try:
            async with asyncio.timeout(END_S):
                await self._transfers.close()
        except TimeoutError:  # nothing can land any more: data from an aborted communicator is dropped
            logger.warning("reads over %s hang; their threads are leaked", self._backend)
        for factory in (self._factory, self._owner.factory if self._owner is not None else self._factory):
            await factory.all_ended()

    def _require_pool(self) -> LocalPool:
        if self._pool is None:
            raise ValueError("no pool was registered")
        return self._pool

    async def _open(self, peer: PoolDescription, units: Units) -> Peer:
        address, peer_id = endpoint.decode(Endpoint, peer, self._backend), PeerId(peer.incarnation)
        if (reason := self._timed_out.reason(self._backend, peer_id)) is not None:
            raise TransportUnavailable(reason)
        self._limit.acquire(peer_id, lambda: self.forget(peer_id))
        try:
            sock = await open_connection(address.host, address.port, address.key, self._require_pool(), peer)
            try:
                group = await self._connect_group(sock, address.host, peer_id)
            except BaseException:
                sock.close()
                raise
        except BaseException:
            self._limit.release(peer_id)
            raise
        connected = Peer(peer, units, address.chunk_bytes, sock, group)
        self._limit.mark_idle(peer_id)
        loop, lose = asyncio.get_running_loop(), self._connections.lose
        loop.add_reader(sock.fileno(), lose, peer_id, connected)  # the owner sends nothing more: readable means closed
        return connected

    async def _connect_group(self, sock: socket.socket, host: str, peer: PeerId) -> PairGroup:
        """Create the communicator with a greeted peer.

        Raises PeerLost if the peer has ended, TransportUnavailable if it is alive but the creation fails or is late.
        """
        try:
            port = await receive_word(sock)
            if port == NO_STORE:
                raise TransportUnavailable(f"peer {peer} has no communicator to spare")
            if port > MAX_PORT:
                raise PeerRefused(f"peer {peer} claims to listen on port {port}")
            async with asyncio.timeout(self._making_deadline_s):
                return await self._make_group(host, port)
        except (OSError, RuntimeError) as error:
            if not is_open(sock):
                raise PeerLost(f"peer {peer} ended while it was being connected: {first_line(error)}") from error
            reason = f"no communicator with peer {peer}: {first_line(error)}"
            if isinstance(error, TimeoutError):
                reason = f"no communicator with peer {peer} within {self._making_deadline_s:g} s"
                self._timed_out.note(self._backend, peer, reason)
            raise TransportUnavailable(reason) from error

    async def _make_group(self, host: str, port: int) -> PairGroup:
        device, timeout_s, streams = self._require_pool().tensor.device, self._chunk_timeout_s, self._streams
        assert streams is not None

        def make() -> PairGroup:
            return PairGroup(peers_store(host, port, timeout_s), READER, self._host, device, timeout_s, streams)

        return await self._factory.make(make)

    def _dispose(self, peer: PeerId, connected: Peer) -> None:
        self._limit.release(peer)
        asyncio.get_running_loop().remove_reader(connected.sock.fileno())
        connected.sock.close()
        self._factory.end(connected.group)
