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
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from baton.kvtransfer import endpoint
from baton.kvtransfer.backend import MAX_READS, Lose
from baton.kvtransfer.base import KVTransport, PeerId, PoolDescription, TransportChoice
from baton.kvtransfer.errors import PeerLost, PeerRefused
from baton.kvtransfer.listener import Listener, is_open
from baton.kvtransfer.local_pool import LocalPool, Units
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.kvtransfer.staged.control import StagingControl
from baton.kvtransfer.staged.copy import StagingCopy
from baton.kvtransfer.staged.owner import StagingOwner
from baton.kvtransfer.staged.read import Local, StagedRead
from baton.kvtransfer.staged.window import WINDOW_BYTES, ReadersFrames, StagingWindow
from baton.kvtransfer.tcp.connection import listening_socket, open_connection
from baton.kvtransfer.transfers import Transfer

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


class StagedBackend:
    """The Backend through windows of host memory, over a transport that it owns."""

    name = NAME
    costs = "which takes each byte twice over PCIe and twice through host memory"

    def __init__(
        self,
        underneath: KVTransport,
        memory: SharedPool,
        host: str,
        port: int = 0,
        connect_deadline_s: float = 5.0,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        """`underneath`: transfers host memory, no pool yet; `memory`: for the window. Both are owned from now on.

        `port`: listens here for peers, 0: any free port.
        """
        self.connect_deadline_s = connect_deadline_s
        self._underneath = underneath
        self._memory = memory
        self._host = host
        self._port = port
        self._window_bytes = window_bytes
        self._window: StagingWindow | None = None
        self._local: Local | None = None
        self._listener: Listener | None = None
        self._threads = ThreadPoolExecutor(MAX_COPIES, thread_name_prefix="baton-kv-staged")

    def register_pool(self, pool: LocalPool) -> bytes:
        """Allocate the window, register it with the transport underneath, and listen for peers; see Backend.

        Raises OSError if the given port is not available, TransportUnavailable if the window cannot be pinned.
        """
        try:
            return self._register(pool)
        except BaseException:  # frees the window now, as the caller may use another transport; `close` does the rest
            self._close_window()
            raise

    def _register(self, local: LocalPool) -> bytes:
        window = self._window = StagingWindow(self._memory, local, self._window_bytes)
        described = self._underneath.register_pool(window.tensor)
        copy = StagingCopy(local, window.tensor)
        owner = StagingOwner(local, ReadersFrames(window.for_readers), window.frame_blocks, copy, self._threads)
        self._local = Local(local, window, copy, self._underneath, self._threads)
        self._listener = Listener(listening_socket(self._host, self._port), local, owner.serve)
        endpoints = {name: base64.b64encode(each).decode() for name, each in described.endpoints.items()}
        where = (*self._listener.address, self._listener.key, described.num_blocks, window.frame_blocks)
        return endpoint.encode(Endpoint(*where, json.dumps(endpoints)))

    async def open(self, peer: PoolDescription, units: Units, lose: Lose) -> "StagedConnection":
        """Greet the peer and connect to its window; see Backend."""
        address, local = endpoint.decode(Endpoint, peer, NAME), self._require_local()
        window, peer_id = _window_of(peer, address), PeerId(peer.incarnation)
        sock = await open_connection(address.host, address.port, address.key, local.pool, peer)
        try:
            await self._underneath.connect(window)
            choice = self._underneath.choices.get(peer_id)
            if choice is None:
                raise PeerLost(f"peer {peer_id} ended as soon as it was connected")
        except BaseException:
            sock.close()
            self._underneath.forget(peer_id)  # it may be connecting right now
            raise
        choice = TransportChoice(f"{NAME}_{choice.transport}", f"through host memory, {choice.reason}")
        connection = StagedConnection(peer, units, address, choice, sock, local, lose)
        asyncio.get_running_loop().add_reader(sock.fileno(), lose, peer_id, connection)
        return connection

    async def stop(self) -> None:
        """Stop serving; see Backend."""
        if self._listener is not None:
            await self._listener.close()

    async def close(self) -> None:
        """Close the transport underneath and free the window; see Backend."""
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


@dataclass(frozen=True, slots=True, eq=False)
class StagedConnection:
    """The control connections to a peer: one for each read, and idle ones."""

    peer: PoolDescription
    units: Units
    address: Endpoint
    choice: TransportChoice
    watched: socket.socket  # carries no data; its end signals the peer's end
    local: Local
    lose: Lose
    max_reads: int = MAX_READS
    idle: list[StagingControl] = field(default_factory=list)

    @property
    def peer_id(self) -> PeerId:
        """The peer's incarnation."""
        return PeerId(self.peer.incarnation)

    def is_open(self) -> bool:
        """Return whether the peer and its window are still connected."""
        return is_open(self.watched) and self.peer_id in self.local.underneath.choices

    def start(self, transfer: Transfer) -> "asyncio.Future[None]":
        """Read frame by frame; see Connection."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._pull(transfer))
        # Not at once: a task cancelled before its start could not raise the reason.
        transfer.interrupt = lambda: loop.call_soon(task.cancel)
        return task

    def close(self) -> None:
        """Close the idle connections and the one to the window; those of reads are closed when these have ended."""
        self.local.underneath.forget(self.peer_id)
        asyncio.get_running_loop().remove_reader(self.watched.fileno())
        self.watched.close()
        while self.idle:
            self.idle.pop().sock.close()

    async def _pull(self, transfer: Transfer) -> None:
        """Run one read over an idle control connection, or a new one."""
        control: StagingControl | None = None
        is_clean = False
        try:
            control = self.idle.pop() if self.idle else StagingControl(await self._connect())
            await StagedRead(self.local, self.units, self.address.frame_blocks, transfer).run(control)
            is_clean = self.watched.fileno() != -1 and len(self.idle) < MAX_IDLE_CONNECTIONS
        except asyncio.CancelledError:
            transfer.check()
            raise
        except OSError as error:
            raise PeerLost(f"peer {transfer.peer} broke the connection: {error}") from error
        finally:
            if is_clean and control is not None:
                self.idle.append(control)
            elif control is not None:
                control.sock.close()

    async def _connect(self) -> socket.socket:
        address = self.address
        return await open_connection(address.host, address.port, address.key, self.local.pool, self.peer)


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
