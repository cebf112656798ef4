"""The NIXL transport over UCX: a device reads remote memory (RDMA), or the kernel does on one host (CMA).

Each pair of peers also keeps a plain TCP control connection. It carries the handshake, and its end signals that the
other side has ended, since NIXL does not report the loss of a peer while no transfer is in flight.

If neither RDMA nor cross-memory attach (CMA) is available, UCX emulates reads over TCP, using the peer's CPU. That is
refused: a reader that dies while its peer is stopped can make UCX abort the *peer's* process (UCX's "Fatal: unexpected
error: Endpoint timeout"), and the tcp transport is faster.

A pool on a GPU is read into a pool on a GPU: by cuda_ipc on one host, by GPUDirect RDMA between hosts. If neither is
available, UCX silently stages through the memory of both hosts. It then needs the peer's CPU, so a read while the peer
verifiably does not poll detects it. This too is refused, with the reason.
"""

import asyncio
import base64
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from baton.kvtransfer import endpoint
from baton.kvtransfer.backend import Lose
from baton.kvtransfer.base import PeerId, PoolDescription, TransportChoice
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransportUnavailable, truncated_repr
from baton.kvtransfer.listener import Listener, is_open
from baton.kvtransfer.local_pool import LocalPool, Units
from baton.kvtransfer.nixl.agent import NixlAgent
from baton.kvtransfer.nixl.connection import NixlConnection
from baton.kvtransfer.nixl.gpu_memory import MemoryPlace, gpu_number
from baton.kvtransfer.nixl.one_sided_probe import device_path, host_path
from baton.kvtransfer.nixl.owner import NixlOwner
from baton.kvtransfer.nixl.rdma import has_rdma_device
from baton.kvtransfer.nixl.read import MAX_GPU_STEP_BYTES, MAX_STEP_BYTES, Region
from baton.kvtransfer.tcp.connection import listening_socket, open_connection
from baton.kvtransfer.threads import run_in_thread

NAME = "nixl"
HOST = torch.device("cpu")
MAX_ADDRESS = 1 << 64
MAX_DEVICES = 1 << 10
PROBE_SHARE = 0.8  # share of the connect deadline for the probe


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address where an owner listens, and of its memory; block size and count are in the PoolDescription."""

    host: str
    port: int
    key: str
    metadata: str  # NIXL's metadata, base64
    base: int  # address of block 0
    rdma: int  # 1 if the host has an RDMA device
    memory: str  # DRAM or VRAM
    device: int  # index of the GPU in the owner's process
    boot: str  # boot id of the owner's kernel


@dataclass(frozen=True, slots=True)
class Registered:
    """Our pool, and a block outside it as the destination of probe reads."""

    pool: LocalPool
    probe_block: Tensor
    place: MemoryPlace

    @property
    def max_step_bytes(self) -> int:
        """Bytes per step of a read."""
        return MAX_GPU_STEP_BYTES if self.place.is_gpu else MAX_STEP_BYTES


class NixlBackend:
    """The Backend over NIXL. NIXL cannot abort a read, so its blocks stay in quarantine until it ends."""

    name = NAME
    costs = ""

    def __init__(
        self,
        incarnation: str,
        host: str,
        port: int = 0,
        connect_deadline_s: float = 5.0,
        one_sided_only: bool = True,
        probe_while_idle: bool | None = None,
        device: torch.device = HOST,
    ) -> None:
        """`one_sided_only=False` permits reads that UCX emulates: not for production, see the module's docstring.

        `port`: listens here for peers, 0: any free port. `probe_while_idle`: probe whether reads are one-sided with
        reads while the peer does not poll, instead of by whether they end immediately, as a copy by the kernel does;
        None: for GPUs only. `device`: of the pool to be registered. Raises TransportUnavailable.
        """
        self.connect_deadline_s = connect_deadline_s
        self._host = host
        self._port = port
        self._one_sided_only = one_sided_only
        self._probe_while_idle = probe_while_idle
        self._registered: Registered | None = None
        self._listener: Listener | None = None
        self._dormant: dict[PeerId, NixlConnection] = {}  # forgotten but alive peers
        # The agent's name is the incarnation, so that NIXL never mistakes a restarted peer for the one that ended.
        self._agent = NixlAgent(incarnation, gpu_number(device))

    def register_pool(self, pool: LocalPool) -> bytes:
        """Register the memory with NIXL and listen for peers; see Backend.

        Raises OSError if the given port is not available, TransportUnavailable for GPU memory if UCX lacks CUDA.
        """
        place, agent = MemoryPlace.of(pool.tensor), self._agent
        probe_block = torch.empty(pool.block_bytes, dtype=torch.uint8, device=pool.tensor.device)
        for memory in (pool.tensor, probe_block):
            agent.call(partial(agent.register, memory, place)).result()
        metadata = base64.b64encode(agent.call(agent.metadata).result()).decode()
        self._registered = Registered(pool, probe_block, place)
        listener = self._listener = Listener(
            listening_socket(self._host, self._port), pool, NixlOwner(self._agent).serve
        )
        host, port = listener.address
        rdma, boot = int(has_rdma_device()), boot_id()
        return endpoint.encode(
            Endpoint(host, port, listener.key, metadata, pool.address, rdma, place.kind, place.device, boot)
        )

    async def open(self, peer: PoolDescription, units: Units, lose: Lose) -> NixlConnection:
        """Greet the peer and probe how NIXL reads it; see Backend."""
        dormant = self._dormant.pop(PeerId(peer.incarnation), None)
        if dormant is not None:
            return dormant
        address = endpoint.decode(Endpoint, peer, NAME)
        registered = self._require_registered()
        sock = await open_connection(address.host, address.port, address.key, registered.pool, peer)
        lost = partial(self._lose, lose)
        unknown = TransportChoice(NAME, "not probed yet")
        connection = NixlConnection(
            peer, units, sock, self._agent, registered.max_step_bytes, unknown, self._rest, lost
        )
        connection.start_polling()  # UCX needs both sides to poll while it sets up a connection
        try:
            connection.choice = TransportChoice(NAME, await self._probe_within_limit(connection, address))
        except BaseException:
            sock.close()
            self._agent.call(partial(self._agent.remove_peer, peer.incarnation))
            raise
        connection.stop_polling()
        asyncio.get_running_loop().add_reader(sock.fileno(), lost, connection)
        return connection

    async def stop(self) -> None:
        """Stop serving and destroy the agent, which ends every transfer; see Backend."""
        if self._listener is not None:
            await self._listener.close()
        for connection in list(self._dormant.values()):
            self._end(connection)
        await run_in_thread("baton-kv-nixl-close", self._agent.close)

    async def close(self) -> None:
        """Return at once; see Backend."""

    def _require_registered(self) -> Registered:
        if self._registered is None:
            raise ValueError("no pool was registered")
        return self._registered

    async def _probe_within_limit(self, connection: NixlConnection, address: Endpoint) -> str:
        """Probe the peer; raise TransportUnavailable, not TransferDeadline, if it is alive but NIXL's reads hang."""
        limit_s = self.connect_deadline_s * PROBE_SHARE
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                return await self._probe(connection, address)
        if not is_open(connection.sock):
            raise PeerLost(f"peer {connection.peer_id} ended while it was being connected")
        raise TransportUnavailable(f"NIXL's probe of peer {connection.peer_id} did not end within {limit_s:g} s")

    async def _probe(self, connection: NixlConnection, address: Endpoint) -> str:
        """Validate the peer's address and read a unit as a probe; return a description of how NIXL reads it."""
        peer, unit_bytes = connection.description, connection.units.unit_bytes
        registered = self._require_registered()
        theirs = MemoryPlace(address.memory, address.device)
        if theirs.kind != registered.place.kind:
            raise TransportUnavailable(
                f"the pool of peer {peer.incarnation} is in {theirs.name}, ours in {registered.place.name}: UCX would "
                "stage reads between them"
            )
        if not 0 <= theirs.device < MAX_DEVICES:
            raise PeerRefused(
                f"peer {peer.incarnation} claims that its pool is on device {truncated_repr(theirs.device)}"
            )
        region = Region(address.base, unit_bytes, connection.units.num_remote, theirs)
        if not 0 < address.base < address.base + peer.num_blocks * peer.block_bytes < MAX_ADDRESS:
            raise PeerRefused(f"peer {peer.incarnation} claims that its pool is at {address.base:#x}")
        try:
            metadata = base64.b64decode(address.metadata, validate=True)
        except ValueError as error:
            raise PeerRefused(f"peer {peer.incarnation} has garbled NIXL metadata") from error
        name = await self._agent.call_async(lambda: self._agent.add_peer(metadata, region))
        if name != peer.incarnation:
            self._agent.call(partial(self._agent.remove_peer, name))
            raise PeerRefused(f"the peer's NIXL agent is {name!r}, its description has {peer.incarnation!r}")
        ours = Region(registered.pool.address, unit_bytes, connection.units.num_local, registered.place)
        scratch = Region(registered.probe_block.data_ptr(), unit_bytes, 1, registered.place)
        connection.region = await self._agent.call_async(lambda: self._agent.prepare(ours))
        scratch_region = await self._agent.call_async(lambda: self._agent.prepare(scratch))
        run = partial(connection.probe, scratch_region, self.connect_deadline_s)
        if registered.place.is_gpu if self._probe_while_idle is None else self._probe_while_idle:
            return await device_path(run, connection, address.boot == boot_id(), self._one_sided_only)
        have_rdma = bool(address.rdma) and has_rdma_device()
        return await host_path(run, connection, have_rdma, self._one_sided_only)

    def _rest(self, connection: NixlConnection) -> None:
        """Keep a closed connection until the peer ends, since UCX does not release the sockets of a live peer."""
        self._dormant[connection.peer_id] = connection

    def _lose(self, lose: Lose, connection: NixlConnection) -> None:
        """Handle the end of a peer, connected or dormant."""
        lose(connection.peer_id, connection)
        if self._dormant.get(connection.peer_id) is connection:
            self._end(connection)

    def _end(self, connection: NixlConnection) -> None:
        del self._dormant[connection.peer_id]
        asyncio.get_running_loop().remove_reader(connection.sock.fileno())
        connection.sock.close()
        self._agent.call(partial(self._agent.remove_peer, connection.peer_id))


def boot_id() -> str:
    """Return the id of this boot of the kernel, which identifies the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
