"""Pools on GPUs over the transports of host memory: by a copy into pinned memory here, and one out of it there.

What such a read costs beside one from GPU to GPU: each byte goes twice over PCIe and twice through host memory, and
both sides' processors have a part in it. So it is for hosts where nothing better works, or for whoever asks for it.

1. The reader asks the owner, over a connection that carries words only, to copy units of its pool into a frame of the
   owner's window.
2. It reads the frame over the transport underneath, into a frame of its own window. The owner fills the next one.
3. It gives the owner's frame back, and hears that it was its own until then.
4. It copies its own frame into its pool, while it reads the next one.
"""

import asyncio
import base64
import json
import secrets
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from torch import Tensor

from baton.kvtransfer import endpoint
from baton.kvtransfer.base import KVTransport, Landed, PeerId, PoolDescription, PoolIdentity, TransportChoice, nobody
from baton.kvtransfer.errors import PeerLost, PeerRefused
from baton.kvtransfer.listener import Listener
from baton.kvtransfer.local_pool import LocalPool
from baton.kvtransfer.quarantine import Quarantine
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.kvtransfer.staged.control import StagingControl
from baton.kvtransfer.staged.copy import StagingCopy
from baton.kvtransfer.staged.owner import StagingOwner
from baton.kvtransfer.staged.read import Local, StagedRead
from baton.kvtransfer.staged.window import WINDOW_BYTES, ReadersFrames, StagingWindow
from baton.kvtransfer.tcp.connection import listening_socket, open_connection
from baton.kvtransfer.transfers import Connections, Transfer, Transfers
from baton.kvtransfer.units import Units

NAME = "staged"
MAX_COPIES = 4  # at once; the bus has two directions
MAX_IDLE_CONNECTIONS = 4  # a peer


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an owner listens, and its window as the transport underneath describes it."""

    host: str
    port: int
    key: str
    window_blocks: int
    frame_blocks: int
    window: str  # a JSON object: that transport's endpoints, base64


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """A peer, and the connections to it."""

    description: PoolDescription
    units: Units
    address: Endpoint
    watched: socket.socket  # says nothing; its end is the peer's
    idle: list[StagingControl] = field(default_factory=list)


class StagedTransport:
    """Reads pools through windows of host memory, over a transport that it owns."""

    def __init__(
        self,
        identity: PoolIdentity,
        underneath: KVTransport,
        memory: SharedPool,
        host: str,
        quarantine: Quarantine | None = None,
        connect_deadline_s: float = 5.0,
        port: int = 0,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        """underneath: moves host memory, has no pool yet; memory: the window's, owned from now on.

        `port`: where peers ask for frames; 0: any free one.
        """
        self.quarantine = quarantine if quarantine is not None else Quarantine()
        self._identity = identity
        self._underneath = underneath
        self._memory = memory
        self._host = host
        self._port = port
        self._window_bytes = window_bytes
        self._window: StagingWindow | None = None
        self._local: Local | None = None
        self._listener: Listener | None = None
        self._transfers = Transfers(self.quarantine)
        self._connections: Connections[Peer] = Connections(connect_deadline_s, self._transfers, self._dispose)
        self._threads = ThreadPoolExecutor(MAX_COPIES, thread_name_prefix="baton-kv-staged")

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """What is underneath, by a name that says that it is staged."""
        ways = self._underneath.choices
        return {
            peer: TransportChoice(f"{NAME}_{ways[peer].transport}", f"through host memory, {ways[peer].reason}")
            for peer in self._connections.peers()
            if peer in ways
        }

    def register_pool(self, pool: Tensor) -> PoolDescription:
        """Allocates the window, registers it with the transport underneath, and listens; see KVTransport.

        Raises OSError if the given port cannot be had, TransportUnavailable where the window cannot be pinned.
        """
        local = LocalPool.of(pool, self._identity, on_gpu=True)
        try:
            return self._register(local)
        except BaseException:  # whoever does without us has no use for the window; the rest is `close`'s
            self._let_go_of_window()
            raise

    def _register(self, local: LocalPool) -> PoolDescription:
        window = self._window = StagingWindow(self._memory, local, self._window_bytes)
        described = self._underneath.register_pool(window.tensor)
        copy = StagingCopy(local, window.tensor)
        sock = listening_socket(self._host, self._port)
        host, port = sock.getsockname()[:2]
        ways = {name: base64.b64encode(each).decode() for name, each in described.endpoints.items()}
        address = Endpoint(
            host, port, secrets.token_hex(16), described.num_blocks, window.frame_blocks, json.dumps(ways)
        )
        owner = StagingOwner(local, ReadersFrames(window.for_readers), window.frame_blocks, copy, self._threads)
        self._local = Local(local, window, copy, self._underneath, self._threads)
        self._listener = Listener(sock, local, address.key, owner.serve)
        return local.describe(NAME, endpoint.encode(address))

    async def connect(self, peer: PoolDescription) -> PeerId:
        """Greets the peer and gets ready to read its window; see KVTransport."""
        units = self._require_local().pool.units(peer)
        peer_id = PeerId(peer.incarnation)
        if peer_id in self._connections.peers() and peer_id not in self._underneath.choices:
            self._connections.lose(peer_id, self._connections.get(peer_id))  # the transport underneath noticed first
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
        """Reads frame by frame; see KVTransport."""
        connected = self._connections.get(peer)
        units = connected.units
        units.check(peer, remote, local)
        if not local:
            return
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []

        def start(transfer: Transfer) -> "asyncio.Future[None]":
            read = StagedRead(self._require_local(), peer, units, connected.address.frame_blocks, transfer, landed)
            tasks.append(loop.create_task(self._pull(connected, read, remote, local, deadline_s)))
            return tasks[0]

        def interrupt() -> None:
            loop.call_soon(tasks[0].cancel)  # once it has begun: it says why it ends

        try:
            await self._transfers.run(peer, units.local_blocks(local), start, deadline_s, interrupt)
        except PeerLost:
            self._connections.lose(peer, connected)
            raise
        finally:
            tasks.clear()
        if not self._connections.is_current(peer, connected):
            raise PeerLost(f"peer {peer} ended during the read")

    def forget(self, peer: PeerId) -> None:
        """Closes the connections to the peer; see KVTransport."""
        self._connections.forget(peer)
        self._underneath.forget(peer)  # which may be connecting

    async def close(self) -> None:
        """Closes every connection and the transport underneath; see KVTransport."""
        if self._listener is not None:
            await self._listener.close()
        await self._connections.close()
        await self._transfers.close()
        await self._underneath.close()
        self._threads.shutdown()
        self._local = None
        self._let_go_of_window()

    def _let_go_of_window(self) -> None:
        window, self._window = self._window, None
        if window is not None:
            window.close()
        self._memory.close()

    def _require_local(self) -> Local:
        if self._local is None:
            raise ValueError("no pool was registered")
        return self._local

    async def _open(self, peer: PoolDescription, units: Units) -> Peer:
        address = endpoint.decode(Endpoint, peer, NAME)
        window = _window_of(peer, address)
        sock = await self._connect(peer, address)
        try:
            await self._underneath.connect(window)
        except BaseException:
            sock.close()
            raise
        connected = Peer(peer, units, address, sock)
        lose = self._connections.lose
        asyncio.get_running_loop().add_reader(sock.fileno(), lose, PeerId(peer.incarnation), connected)
        return connected

    async def _connect(self, peer: PoolDescription, address: Endpoint) -> socket.socket:
        return await open_connection(address.host, address.port, address.key, self._require_local().pool, peer)

    async def _pull(
        self, peer: Peer, read: StagedRead, remote: Sequence[int], local: Sequence[int], deadline_s: float
    ) -> None:
        """One read, with a connection of its own meanwhile."""
        control: StagingControl | None = None
        try:
            control = (
                peer.idle.pop() if peer.idle else StagingControl(await self._connect(peer.description, peer.address))
            )
            await read.run(control, remote, local, deadline_s)
        except asyncio.CancelledError:
            _close(control)
            read.transfer.check()
            raise
        except OSError as error:
            _close(control)
            raise PeerLost(f"peer {read.peer} broke the connection: {error}") from error
        except BaseException:
            _close(control)
            raise
        if self._connections.is_current(read.peer, peer) and len(peer.idle) < MAX_IDLE_CONNECTIONS:
            peer.idle.append(control)
        else:
            control.sock.close()

    def _dispose(self, peer: PeerId, connected: Peer) -> None:
        self._underneath.forget(peer)
        asyncio.get_running_loop().remove_reader(connected.watched.fileno())
        connected.watched.close()
        while connected.idle:
            connected.idle.pop().sock.close()


def _close(control: StagingControl | None) -> None:
    if control is not None:
        control.sock.close()


def _window_of(peer: PoolDescription, address: Endpoint) -> PoolDescription:
    """The peer's window, as its transport underneath describes it. Raises PeerRefused if that is garbled."""
    try:
        ways = {str(name): base64.b64decode(each, validate=True) for name, each in json.loads(address.window).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise PeerRefused(f"peer {peer.incarnation} has a garbled {NAME} endpoint: {error!r}") from error
    if not 0 < address.frame_blocks <= address.window_blocks:
        raise PeerRefused(f"peer {peer.incarnation} has a garbled {NAME} endpoint: frame_blocks is wrong")
    return PoolDescription(peer.incarnation, peer.fingerprint, address.window_blocks, peer.block_bytes, ways)
