"""The staged transport: reads GPU pools over a host-memory transport, through windows of pinned memory on both sides.

Compared with a read from GPU to GPU, each byte crosses PCIe twice and host memory twice, and both CPUs take part. So it
is for hosts where nothing better works, or for explicit requests.

1. The reader requests, over a control connection, that the owner copies units of its pool into a frame of the owner's
   window.
2. The reader reads the frame over the transport underneath, into a frame of its own window. Meanwhile the owner fills
   the next frame.
3. The reader returns the owner's frame, and the owner confirms that it was lent to the reader until then.
4. The reader copies its frame into its pool while it reads the next one.
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
from baton.kvtransfer.base import (
    KVTransport,
    Landed,
    PeerId,
    PoolDescription,
    PoolIdentity,
    TransportChoice,
    ignore_landed,
)
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
MAX_COPIES = 4  # at once; PCIe has two directions
MAX_IDLE_CONNECTIONS = 4  # per peer


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address where an owner listens, and the description of its window by the transport underneath."""

    host: str
    port: int
    key: str
    window_blocks: int
    frame_blocks: int
    window: str  # JSON object: the endpoints of the transport underneath, base64


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """A peer and the control connections to it."""

    description: PoolDescription
    units: Units
    address: Endpoint
    watched: socket.socket  # carries no data; its end signals the peer's end
    idle: list[StagingControl] = field(default_factory=list)


class StagedTransport:
    """KVTransport through windows of host memory, over a transport that it owns."""

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
        """`underneath`: transfers host memory, no pool yet; `memory`: for the window. Both are owned from now on.

        `port`: listens here for peers, 0: any free port.
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
        """The choice of the transport underneath for each connected peer, its name prefixed with `staged_`."""
        choices = self._underneath.choices
        return {
            peer: TransportChoice(f"{NAME}_{choices[peer].transport}", f"through host memory, {choices[peer].reason}")
            for peer in self._connections.peers()
            if peer in choices
        }

    def register_pool(self, pool: Tensor) -> PoolDescription:
        """Allocate the window, register it with the transport underneath, and listen for peers; see KVTransport.

        Raises OSError if the given port is not available, TransportUnavailable if the window cannot be pinned.
        """
        local = LocalPool.of(pool, self._identity, on_gpu=True)
        try:
            return self._register(local)
        except BaseException:  # frees the window now, as the caller may use another transport; `close` does the rest
            self._close_window()
            raise

    def _register(self, local: LocalPool) -> PoolDescription:
        window = self._window = StagingWindow(self._memory, local, self._window_bytes)
        described = self._underneath.register_pool(window.tensor)
        copy = StagingCopy(local, window.tensor)
        sock = listening_socket(self._host, self._port)
        host, port = sock.getsockname()[:2]
        endpoints = {name: base64.b64encode(each).decode() for name, each in described.endpoints.items()}
        address = Endpoint(
            host, port, secrets.token_hex(16), described.num_blocks, window.frame_blocks, json.dumps(endpoints)
        )
        owner = StagingOwner(local, ReadersFrames(window.for_readers), window.frame_blocks, copy, self._threads)
        self._local = Local(local, window, copy, self._underneath, self._threads)
        self._listener = Listener(sock, local, address.key, owner.serve)
        return local.describe(NAME, endpoint.encode(address))

    async def connect(self, peer: PoolDescription) -> PeerId:
        """Greet the peer and connect to its window; see KVTransport."""
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
        landed: Landed = ignore_landed,
    ) -> None:
        """Read frame by frame; see KVTransport."""
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
            loop.call_soon(tasks[0].cancel)  # not at once: a task cancelled before its start could not raise the reason

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
        """Close the connections to the peer; see KVTransport."""
        self._connections.forget(peer)
        self._underneath.forget(peer)  # it may be connecting right now

    async def close(self) -> None:
        """Close every connection and the transport underneath; see KVTransport."""
        if self._listener is not None:
            await self._listener.close()
        await self._connections.close()
        await self._transfers.close()
        await self._underneath.close()
        self._threads.shutdown()
        self._local = None
        self._close_window()

    def _close_window(self) -> None:
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
        """Run one read over an idle control connection, or a new one."""
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
    """Return the description of the peer's window for the transport underneath. Raises PeerRefused if garbled."""
    try:
        encoded = json.loads(address.window)
        endpoints = {str(name): base64.b64decode(each, validate=True) for name, each in encoded.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise PeerRefused(f"peer {peer.incarnation} has a garbled {NAME} endpoint: {error!r}") from error
    if not 0 < address.frame_blocks <= address.window_blocks:
        raise PeerRefused(f"peer {peer.incarnation} has a garbled {NAME} endpoint: frame_blocks is wrong")
    return PoolDescription(peer.incarnation, peer.fingerprint, address.window_blocks, peer.block_bytes, endpoints)
