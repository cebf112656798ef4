"""Two processes' GPUs by NCCL: the owner's processor and GPU take part in every read, so it is called two-sided.

It is the second choice, behind NIXL, whose reads need nobody's help. What follows from that:

- A peer that is stopped sends nothing, and NCCL's kernel waits on our GPU for as long: reads have deadlines, and one
  that was given up lets what it has asked for come, or aborts the communicator, which ends the connection.
- What comes is received beside the pool and copied into it only then. So after an abort nothing can land in a block
  once the read's own thread has ended; the quarantine follows that.
- Reads from one peer go one after the other: a communicator is one line.

The same between pools in host memory goes over gloo. It is what the tests run; tcp is better for service.
"""

import asyncio
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from kvtransfer import endpoint
from kvtransfer.base import Landed, PeerId, PoolDescription, PoolIdentity, TransportChoice, nobody
from kvtransfer.connections import Connections
from kvtransfer.errors import PeerLost, TransferDeadline, TransferError, TransportUnavailable
from kvtransfer.listener import Listener
from kvtransfer.local_pool import LocalPool
from kvtransfer.pair_group import READER, PairGroup, made, nccl_type, peers_store
from kvtransfer.pair_owner import PairOwner
from kvtransfer.pair_read import PairRead
from kvtransfer.quarantine import Quarantine
from kvtransfer.shared_memory import is_open
from kvtransfer.staging_control import receive_word
from kvtransfer.tcp_connection import listening_socket, open_connection
from kvtransfer.threads import run_in_thread
from kvtransfer.transfers import Transfer, Transfers
from kvtransfer.units import Units

NAME = "nccl"
GLOO = "gloo"
CHUNK_BYTES = 8 << 20  # sent at once
CHUNK_TIMEOUT_S = 5.0  # for that; and for two sides to connect
GRACE_S = 0.5  # for what was asked for to come, before a read that was given up aborts the communicator


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


class PairTransport:
    """Reads pools by NCCL, or gloo, over a communicator for each peer."""

    def __init__(
        self,
        identity: PoolIdentity,
        host: str,
        quarantine: Quarantine | None = None,
        connect_deadline_s: float = 10.0,
        port: int = 0,
        backend: str = NAME,
        chunk_timeout_s: float = CHUNK_TIMEOUT_S,
    ) -> None:
        """`port`: where peers greet; 0: any free one; `backend`: nccl, or gloo for pools in host memory.

        Raises TransportUnavailable in a torch without NCCL.
        """
        if backend == NAME:
            nccl_type()
        self.quarantine = quarantine if quarantine is not None else Quarantine()
        self._identity = identity
        self._host = host
        self._port = port
        self._backend = backend
        self._chunk_timeout_s = chunk_timeout_s
        self._pool: LocalPool | None = None
        self._listener: Listener | None = None
        self._connections: Connections[Peer] = Connections(connect_deadline_s)
        self._transfers = Transfers(self.quarantine)
        self._ending: set[asyncio.Future[None]] = set()  # communicators that are being aborted

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
        self._pool = local
        sock = listening_socket(self._host, self._port)
        host, port = sock.getsockname()[:2]
        address = Endpoint(host, port, secrets.token_hex(16), CHUNK_BYTES)
        owner = PairOwner(local, self._host, self._chunk_timeout_s, CHUNK_BYTES)
        self._listener = Listener(sock, local, address.key, owner.serve)
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
        peer, units = PeerId(connected.description.incarnation), connected.units
        loop = asyncio.get_running_loop()
        if not self._connections.is_current(peer, connected):
            connected.line.release()
            raise PeerLost(f"peer {peer} was forgotten")
        step = max(1, min(connected.chunk_bytes, CHUNK_BYTES) // units.unit_bytes)
        timers: list[asyncio.TimerHandle] = []

        def start(transfer: Transfer) -> "asyncio.Future[None]":
            rows = self._require_pool().rows(units.unit_bytes)
            read = PairRead(connected.sock, connected.group, rows, step, transfer, landed)
            return loop.create_task(read.run(remote, local))

        def interrupt() -> None:
            timers.append(loop.call_later(GRACE_S, self._lose, connected))

        def ended(_: bool) -> None:
            for timer in timers:
                timer.cancel()
            connected.line.release()

        held = units.local_blocks(local)
        try:
            await self._transfers.run(peer, held, start, max(0.0, end_s - loop.time()), interrupt, ended)
        except PeerLost:
            self._lose(connected)
            raise

    def forget(self, peer: PeerId) -> None:
        """Ends the communicator; see KVTransport."""
        self._drop(peer, PeerLost(f"peer {peer} was forgotten"))

    async def close(self) -> None:
        """Ends every communicator; see KVTransport."""
        if self._listener is not None:
            await self._listener.close()
        await self._connections.close()
        for peer in self._connections.peers():  # no read can start from now on
            self.forget(peer)
        await self._transfers.close()
        while self._ending:
            await asyncio.wait(self._ending)

    def _require_pool(self) -> LocalPool:
        if self._pool is None:
            raise ValueError("no pool was registered")
        return self._pool

    async def _open(self, peer: PoolDescription, units: Units) -> Peer:
        address = endpoint.decode(Endpoint, peer, self._backend)
        pool = self._require_pool()
        sock = await open_connection(address.host, address.port, address.key, pool, peer)
        try:
            port = await receive_word(sock)
            group = await self._make_group(address.host, port)
        except (OSError, RuntimeError) as error:
            is_there = is_open(sock)
            sock.close()
            if not is_there:
                raise PeerLost(f"peer {peer.incarnation} ended while it was being connected: {error}") from error
            reason = str(error).splitlines()[0]
            raise TransportUnavailable(f"no communicator with peer {peer.incarnation}: {reason}") from error
        except BaseException:
            sock.close()
            raise
        connected = Peer(peer, units, address.chunk_bytes, sock, group)
        asyncio.get_running_loop().add_reader(sock.fileno(), self._lose, connected)  # it says nothing more
        return connected

    async def _make_group(self, host: str, port: int) -> PairGroup:
        device, timeout_s = self._require_pool().tensor.device, self._chunk_timeout_s

        def make() -> PairGroup:
            return PairGroup(peers_store(host, port, timeout_s), READER, self._host, device, timeout_s)

        return await made(make)

    def _end(self, group: PairGroup) -> None:
        ending = run_in_thread("baton-kv-pair-end", group.abort)
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _lose(self, peer: Peer) -> None:
        peer_id = PeerId(peer.description.incarnation)
        if self._connections.is_current(peer_id, peer):
            self._drop(peer_id, PeerLost(f"peer {peer_id} ended"))

    def _drop(self, peer: PeerId, reason: TransferError) -> None:
        connected = self._connections.pop(peer)
        self._transfers.abort(peer, reason)
        if connected is not None:
            asyncio.get_running_loop().remove_reader(connected.sock.fileno())
            connected.sock.close()
            self._end(connected.group)
