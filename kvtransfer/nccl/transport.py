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
import socket
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from baton.kvtransfer import endpoint
from baton.kvtransfer.backend import Lose
from baton.kvtransfer.base import PeerId, PoolDescription, TransportChoice
from baton.kvtransfer.cuda_streams import SideStreams
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransportUnavailable, first_line
from baton.kvtransfer.listener import Listener, is_open
from baton.kvtransfer.local_pool import LocalPool, Units
from baton.kvtransfer.nccl.communicator import (
    READER,
    PairGroup,
    load_kernels,
    nccl_type,
    peers_store,
    require_blocking_wait,
)
from baton.kvtransfer.nccl.communicators import CommunicatorFactory, CommunicatorLimit
from baton.kvtransfer.nccl.owner import NO_STORE, PairOwner, disconnect
from baton.kvtransfer.nccl.read import PairRead
from baton.kvtransfer.refusals import Refusals
from baton.kvtransfer.staged.control import receive_word
from baton.kvtransfer.tcp.connection import listening_socket, open_connection
from baton.kvtransfer.transfers import Transfer

NAME = "nccl"
CHUNK_BYTES = 8 << 20  # per message
CHUNK_TIMEOUT_S = 5.0  # for one chunk, for the two sides to connect, and for an aborted read to drain its chunks
MAKING_SHARE = 2 / 3  # share of the connect deadline for creating the communicator
MAX_PORT = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address where an owner listens."""

    host: str
    port: int
    key: str
    chunk_bytes: int


class PairBackend:
    """The Backend over NCCL or gloo, with one communicator per peer."""

    costs = ""

    def __init__(
        self,
        host: str,
        port: int = 0,
        connect_deadline_s: float = 15.0,
        name: str = NAME,
        chunk_timeout_s: float = CHUNK_TIMEOUT_S,
    ) -> None:
        """`port`: listens here for peers, 0: any free port; `name`: nccl, or gloo for pools in host memory.

        `chunk_timeout_s`: for each chunk. Raises TransportUnavailable if torch has no NCCL, or is configured to end the
        process when NCCL is late.
        """
        if name == NAME:
            nccl_type()
            require_blocking_wait()
        self.name = name
        self.connect_deadline_s = connect_deadline_s
        self._host = host
        self._port = port
        self._chunk_timeout_s = chunk_timeout_s
        self._making_deadline_s = connect_deadline_s * MAKING_SHARE
        self._owner: PairOwner | None = None
        self._listener: Listener | None = None
        self._factory = CommunicatorFactory()
        self._limit = CommunicatorLimit()
        self._timed_out = Refusals(retry_s=None)

    def register_pool(self, pool: LocalPool) -> bytes:
        """Listen for peers; see Backend. Raises OSError if the given port is not available."""
        if self.name != NAME:
            pool.require_host_memory()
        elif not pool.tensor.is_cuda:
            raise TransportUnavailable(f"NCCL transfers GPU memory, this pool is on {pool.tensor.device}")
        else:
            load_kernels(pool.rows(pool.block_bytes))
        streams = SideStreams(pool.tensor.device)
        self._owner = PairOwner(pool, self._host, self._chunk_timeout_s, CHUNK_BYTES, streams)
        self._listener = Listener(listening_socket(self._host, self._port), pool, self._owner.serve)
        return endpoint.encode(Endpoint(*self._listener.address, self._listener.key, CHUNK_BYTES))

    async def open(self, peer: PoolDescription, units: Units, lose: Lose) -> "PairConnection":
        """Greet the peer and create the communicator; see Backend."""
        address, peer_id = endpoint.decode(Endpoint, peer, self.name), PeerId(peer.incarnation)
        if (reason := self._timed_out.reason(self.name, peer_id)) is not None:
            raise TransportUnavailable(reason)
        owner = self._owner
        assert owner is not None
        self._limit.require_room()  # before the owner creates a communicator in vain
        sock = await open_connection(address.host, address.port, address.key, owner.pool, peer)
        try:
            self._limit.acquire(peer_id, partial(disconnect, sock))
            group = await self._connect_group(sock, address.host, peer_id, owner)
        except BaseException:
            self._limit.release(peer_id)
            sock.close()
            raise
        self._limit.mark_idle(peer_id)
        connection = PairConnection(
            peer_id,
            TransportChoice(self.name, "two-sided: the peer's CPU sends"),
            sock,
            group,
            rows=owner.pool.rows(units.unit_bytes),
            step=max(1, min(address.chunk_bytes, CHUNK_BYTES) // units.unit_bytes),
            grace_s=self._chunk_timeout_s,
            limit=self._limit,
            factory=self._factory,
            lose=lose,
        )
        # The owner sends nothing more: readable means closed.
        asyncio.get_running_loop().add_reader(sock.fileno(), lose, peer_id, connection)
        return connection

    async def _connect_group(self, sock: socket.socket, host: str, peer: PeerId, owner: PairOwner) -> PairGroup:
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
                return await self._factory.make(partial(_join, owner, host, port))
        except (OSError, RuntimeError) as error:
            if not is_open(sock):
                raise PeerLost(f"peer {peer} ended while it was being connected: {first_line(error)}") from error
            reason = f"no communicator with peer {peer}: {first_line(error)}"
            if isinstance(error, TimeoutError):
                reason = f"no communicator with peer {peer} within {self._making_deadline_s:g} s"
                self._timed_out.note(self.name, peer, reason)
            raise TransportUnavailable(reason) from error

    async def stop(self) -> None:
        """Stop serving; see Backend."""
        if self._listener is not None:
            await self._listener.close()

    async def close(self) -> None:
        """Wait for the ends of all communicators; see Backend."""
        await self._factory.all_ended()
        if self._owner is not None:
            await self._owner.factory.all_ended()


def _join(owner: PairOwner, host: str, port: int) -> PairGroup:
    """Create our side of the communicator at the peer's store; blocks."""
    store = peers_store(host, port, owner.timeout_s)
    return PairGroup(store, READER, owner.host, owner.pool.tensor.device, owner.timeout_s, owner.streams)


@dataclass(frozen=True, slots=True, eq=False)
class PairConnection:
    """The connection to a peer that carries requests, and the communicator that carries units."""

    peer: PeerId
    choice: TransportChoice
    sock: socket.socket
    group: PairGroup
    rows: Tensor  # our pool, [num_units, unit_bytes]
    step: int  # units per chunk
    grace_s: float  # for an aborted read to drain its requested chunks before the communicator is aborted
    limit: CommunicatorLimit
    factory: CommunicatorFactory
    lose: Lose
    max_reads: int = 1

    def is_open(self) -> bool:
        """Return whether the peer is still connected."""
        return is_open(self.sock)

    def start(self, transfer: Transfer) -> "asyncio.Future[None]":
        """Receive chunk by chunk; see Connection."""
        loop, lose = asyncio.get_running_loop(), partial(self.lose, self.peer, self)
        read = PairRead(self.sock, self.group, self.rows, self.step, transfer)
        timers: list[asyncio.TimerHandle] = []

        def ended(_: bool) -> None:
            for timer in timers:
                timer.cancel()
            if not read.is_drained:  # before the next read starts
                lose()
            self.limit.mark_idle(self.peer)

        transfer.interrupt = lambda: timers.append(loop.call_later(self.grace_s, lose))
        transfer.ended = ended
        self.limit.mark_busy(self.peer)
        return loop.create_task(read.run())

    def close(self) -> None:
        """Close the connection and abort the communicator."""
        self.limit.release(self.peer)
        asyncio.get_running_loop().remove_reader(self.sock.fileno())
        self.sock.close()
        self.factory.end(self.group)
