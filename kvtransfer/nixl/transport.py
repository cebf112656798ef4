"""NIXL over UCX: remote memory is read by the device (RDMA), or by the kernel on one host (cross-memory attach).

Beside NIXL each pair of peers keeps a plain TCP connection: it greets, and its end is how each side learns that the
other is gone, since NIXL says nothing of a peer while no transfer is in flight.

Where UCX has neither RDMA nor cross-memory attach it emulates reads over TCP, with the peer's processor and software.
That is refused: a reader that dies while its peer was stopped can make UCX abort the *peer's* process (UCX's "Fatal:
unexpected error: Endpoint timeout"), and the tcp transport is faster.

A pool on a GPU is read into another on a GPU: by cuda_ipc on one host, by GPUDirect RDMA between hosts. Where UCX can
do neither it stages through both hosts' memory, and says nothing. But then it needs the peer's processor, so a read
while the peer rests tells, if it did rest: this too is refused, with the reason.
"""

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from baton.kvtransfer import endpoint
from baton.kvtransfer.base import Landed, PeerId, PoolDescription, PoolIdentity, TransportChoice, nobody
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransportUnavailable, truncated_repr
from baton.kvtransfer.listener import Listener, is_open
from baton.kvtransfer.local_pool import LocalPool
from baton.kvtransfer.nixl.agent import NixlAgent
from baton.kvtransfer.nixl.gpu_memory import MemoryPlace, gpu_number
from baton.kvtransfer.nixl.one_sided_probe import device_path, host_path
from baton.kvtransfer.nixl.owner import NixlOwner
from baton.kvtransfer.nixl.peer import NixlPeer
from baton.kvtransfer.nixl.rdma import has_rdma_device
from baton.kvtransfer.nixl.read import MAX_GPU_STEP_BYTES, MAX_STEP_BYTES, Read, Region
from baton.kvtransfer.quarantine import Quarantine
from baton.kvtransfer.tcp.connection import listening_socket, open_connection
from baton.kvtransfer.threads import run_in_thread
from baton.kvtransfer.transfers import Connections, Transfer, Transfers
from baton.kvtransfer.units import Units

NAME = "nixl"
HOST = torch.device("cpu")
MAX_ADDRESS = 1 << 64
MAX_DEVICES = 1 << 10
TRIAL_SHARE = 0.8  # of the deadline for connecting


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an owner listens, and how NIXL reaches its memory; stride and count are the description's."""

    host: str
    port: int
    key: str
    metadata: str  # NIXL's, base64
    base: int  # address of block 0
    rdma: int  # 1 if the host has an RDMA device
    memory: str  # DRAM or VRAM
    device: int  # the owner's number of the GPU
    boot: str  # which kernel the owner runs under


@dataclass(frozen=True, slots=True)
class Registered:
    """Our pool, and a block outside it for trial reads."""

    pool: LocalPool
    trial: Tensor
    place: MemoryPlace

    @property
    def max_step_bytes(self) -> int:
        """Asked for at once."""
        return MAX_GPU_STEP_BYTES if self.place.is_gpu else MAX_STEP_BYTES


class NixlTransport:
    """Reads pools through NIXL; a read that NIXL cannot abort keeps its blocks in quarantine until it ends."""

    def __init__(
        self,
        identity: PoolIdentity,
        host: str,
        quarantine: Quarantine | None = None,
        connect_deadline_s: float = 5.0,
        one_sided_only: bool = True,
        port: int = 0,
        tries_at_rest: bool | None = None,
        device: torch.device = HOST,
    ) -> None:
        """`one_sided_only=False` lets UCX emulate reads: not for service, see above. Raises TransportUnavailable.

        `port`: where peers greet; 0: any free one. `tries_at_rest`: find out whether reads are one-sided by some while
        the peer rests, and not by whether they end at once, as a copy by the kernel does; None: for GPUs only.
        `device`: where the pool will be.
        """
        self.quarantine = quarantine if quarantine is not None else Quarantine()
        self._identity = identity
        self._host = host
        self._port = port
        self._connect_deadline_s = connect_deadline_s
        self._one_sided_only = one_sided_only
        self._tries_at_rest = tries_at_rest
        self._registered: Registered | None = None
        self._listener: Listener | None = None
        self._dormant: dict[PeerId, NixlPeer] = {}  # forgotten, but alive
        self._transfers = Transfers(self.quarantine)
        self._connections: Connections[NixlPeer] = Connections(connect_deadline_s, self._transfers, self._put_to_sleep)
        # The name is the life's id: one that was dead once can never come back.
        self._agent = NixlAgent(identity.incarnation, gpu_number(device))

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """NIXL, for every connected peer."""
        return {peer: TransportChoice(NAME, self._connections.get(peer).reason) for peer in self._connections.peers()}

    def register_pool(self, pool: Tensor) -> PoolDescription:
        """Registers the memory with NIXL and listens for peers; see KVTransport.

        Raises OSError if the given port cannot be had, TransportUnavailable for a GPU's memory where UCX has no CUDA.
        """
        local, place = LocalPool.of(pool, self._identity, on_gpu=True), MemoryPlace.of(pool)
        agent = self._agent
        trial = torch.empty(local.block_bytes, dtype=torch.uint8, device=pool.device)
        for memory in (pool, trial):
            agent.call(partial(agent.register, memory, place)).result()
        metadata = base64.b64encode(agent.call(agent.metadata).result()).decode()
        self._registered = Registered(local, trial, place)
        sock = listening_socket(self._host, self._port)
        host, port = sock.getsockname()[:2]
        key, rdma = secrets.token_hex(16), int(has_rdma_device())
        address = Endpoint(host, port, key, metadata, local.address, rdma, place.kind, place.device, boot_id())
        self._listener = Listener(sock, local, address.key, NixlOwner(self._agent).serve)
        return local.describe(NAME, endpoint.encode(address))

    async def connect(self, peer: PoolDescription) -> PeerId:
        """Greets the peer and reads a unit on trial; see KVTransport."""
        units = self._require_registered().pool.units(peer)
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
        """Reads in the agent's thread, some MiB at a time; see KVTransport."""
        connection = self._connections.get(peer)
        units = connection.units
        units.check(peer, remote, local)
        if local:
            step = self._require_registered().max_step_bytes
            read = partial(
                Read, peer, connection.region, local, remote, units.unit_bytes, landed=landed, max_step_bytes=step
            )
            await self._run(connection, read, units.local_blocks(local), deadline_s)
        if not self._connections.is_current(peer, connection):
            raise PeerLost(f"peer {peer} ended during the read")

    def forget(self, peer: PeerId) -> None:
        """Ends the reads from the peer; see KVTransport.

        NIXL's connection sleeps on until the peer ends: UCX does not give back a living peer's sockets.
        """
        self._connections.forget(peer)

    async def close(self) -> None:
        """Destroys the agent, which ends every transfer; see KVTransport."""
        if self._listener is not None:
            await self._listener.close()
        await self._connections.close()
        for connection in list(self._dormant.values()):
            self._lose(connection)
        await run_in_thread("baton-kv-nixl-close", self._agent.close)
        await self._transfers.close()

    def _require_registered(self) -> Registered:
        if self._registered is None:
            raise ValueError("no pool was registered")
        return self._registered

    async def _run(self, peer: NixlPeer, make: "partial[Read]", held: Sequence[int], deadline_s: float) -> Read:
        """Starts a read and waits for its end; asks the peer to poll if it does not get on."""
        loop = asyncio.get_running_loop()
        reads: list[Read] = []

        def start(transfer: Transfer) -> "asyncio.Future[None]":
            ended: asyncio.Future[None] = loop.create_future()
            reads.append(make(transfer, ended, lambda: loop.call_soon_threadsafe(peer.ask)))
            self._agent.read(reads[0])
            return ended

        def finish(_: bool) -> None:
            if reads[0].has_asked:
                peer.stop_polling()
            if reads[0].is_broken:
                self._lose(peer)

        await self._transfers.run(peer.peer_id, held, start, deadline_s, ended=finish)
        return reads[0]

    async def _open(self, peer: PoolDescription, units: Units) -> NixlPeer:
        dormant = self._dormant.pop(PeerId(peer.incarnation), None)
        if dormant is not None:
            return dormant
        address = endpoint.decode(Endpoint, peer, NAME)
        pool = self._require_registered().pool
        sock = await open_connection(address.host, address.port, address.key, pool, peer)
        connection = NixlPeer(peer, units, sock)
        connection.ask()  # UCX sets a connection up with both sides' help
        try:
            connection.reason = await self._try_in_time(connection, address)
        except BaseException:
            sock.close()
            self._agent.call(partial(self._agent.remove_peer, peer.incarnation))
            raise
        connection.stop_polling()
        asyncio.get_running_loop().add_reader(sock.fileno(), self._lose, connection)
        return connection

    async def _try_in_time(self, connection: NixlPeer, address: Endpoint) -> str:
        """A peer that is there, but over NIXL does not answer, is for another transport."""
        limit_s = self._connect_deadline_s * TRIAL_SHARE
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                return await self._try(connection, address)
        if not is_open(connection.sock):
            raise PeerLost(f"peer {connection.peer_id} ended while it was being connected")
        raise TransportUnavailable(f"NIXL read nothing of peer {connection.peer_id} on trial within {limit_s:g} s")

    async def _try(self, connection: NixlPeer, address: Endpoint) -> str:
        """Reads a unit, to see how; returns that in words."""
        peer, unit_bytes = connection.description, connection.units.unit_bytes
        registered = self._require_registered()
        theirs = MemoryPlace(address.memory, address.device)
        if theirs.kind != registered.place.kind:
            raise TransportUnavailable(
                f"the pool of peer {peer.incarnation} is in {theirs.name}, ours in {registered.place.name}: UCX would "
                "stage what is read between them"
            )
        if not 0 <= theirs.device < MAX_DEVICES:
            raise PeerRefused(
                f"peer {peer.incarnation} says that its pool is on device {truncated_repr(theirs.device)}"
            )
        region = Region(address.base, unit_bytes, connection.units.num_remote, theirs)
        if not 0 < address.base < address.base + peer.num_blocks * peer.block_bytes < MAX_ADDRESS:
            raise PeerRefused(f"peer {peer.incarnation} says that its pool is at {address.base:#x}")
        try:
            metadata = base64.b64decode(address.metadata, validate=True)
        except ValueError as error:
            raise PeerRefused(f"peer {peer.incarnation} has garbled NIXL metadata") from error
        name = await self._agent.ask(lambda: self._agent.add_peer(metadata, region))
        if name != peer.incarnation:
            self._agent.call(partial(self._agent.remove_peer, name))
            raise PeerRefused(f"the peer's NIXL agent is {name!r}, it was described as {peer.incarnation!r}")
        ours = Region(registered.pool.address, unit_bytes, connection.units.num_local, registered.place)
        trials = Region(registered.trial.data_ptr(), unit_bytes, 1, registered.place)
        connection.region = await self._agent.ask(lambda: self._agent.prepare(ours))
        trial_region = await self._agent.ask(lambda: self._agent.prepare(trials))
        trial = partial(Read, peer.incarnation, trial_region, [0], [0], unit_bytes)

        def run(ask_after_s: float) -> Awaitable[Read]:
            return self._run(connection, partial(trial, ask_after_s=ask_after_s), [], self._connect_deadline_s)

        if registered.place.is_gpu if self._tries_at_rest is None else self._tries_at_rest:
            return await device_path(run, connection, address.boot == boot_id(), self._one_sided_only)
        have_rdma = bool(address.rdma) and has_rdma_device()
        return await host_path(run, connection, have_rdma, self._one_sided_only)

    def _put_to_sleep(self, peer: PeerId, connection: NixlPeer) -> None:
        self._dormant[peer] = connection

    def _lose(self, connection: NixlPeer) -> None:
        peer = connection.peer_id
        self._connections.lose(peer, connection)
        if self._dormant.get(peer) is not connection:
            return
        del self._dormant[peer]
        asyncio.get_running_loop().remove_reader(connection.sock.fileno())
        connection.sock.close()
        self._agent.call(partial(self._agent.remove_peer, peer))


def boot_id() -> str:
    """Names this boot of the kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
