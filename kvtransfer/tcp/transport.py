"""The TCP transport between any two hosts: from one pool's memory directly into the other's.

A connection carries one read at a time, with one thread on either side. Closing it aborts the read: once the reading
thread has ended, nothing of that read can land any more.
"""

import asyncio
import logging
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from baton.kvtransfer import endpoint
from baton.kvtransfer.backend import Lose
from baton.kvtransfer.base import PeerId, PoolDescription, TransportChoice
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransferError
from baton.kvtransfer.handshake import Caller
from baton.kvtransfer.listener import Listener
from baton.kvtransfer.local_pool import LocalPool, Units, unit_bytes_of
from baton.kvtransfer.tcp import frames as tcp_frames
from baton.kvtransfer.tcp.connection import keep_alive, listening_socket, open_connection
from baton.kvtransfer.threads import run_in_thread, settled
from baton.kvtransfer.transfers import CopyThreads, Transfer

logger = logging.getLogger(__name__)

NAME = "tcp"
MAX_IDLE_CONNECTIONS = 4  # per peer
MAX_READS = 64  # at once; further reads wait for a thread
MAX_PEER_READS = 8  # at once per peer, so that an unresponsive peer does not occupy all threads


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address where an owner listens."""

    host: str
    port: int
    key: str


class TcpBackend:
    """The Backend over TCP, with one connection per concurrent read."""

    name = NAME
    costs = ""

    def __init__(self, host: str, port: int = 0, connect_deadline_s: float = 5.0) -> None:
        """Listen at `host` and `port` for peers; 0: any free port."""
        self.connect_deadline_s = connect_deadline_s
        self._host = host
        self._port = port
        self._pool: LocalPool | None = None
        self._listener: Listener | None = None
        self._threads = CopyThreads(NAME, MAX_READS)

    def register_pool(self, pool: LocalPool) -> bytes:
        """Listen for peers; see Backend. Raises OSError if the given port is not available."""
        pool.require_host_memory()
        self._pool = pool
        self._listener = Listener(listening_socket(self._host, self._port), pool, partial(serve_reader, pool))
        return endpoint.encode(Endpoint(*self._listener.address, self._listener.key))

    async def open(self, peer: PoolDescription, units: Units, lose: Lose) -> "TcpConnection":
        """Open a first connection; see Backend."""
        assert self._pool is not None
        connection = TcpConnection(peer, units, self._pool, self._threads, lose)
        await connection.open_first()
        return connection

    async def stop(self) -> None:
        """Stop serving; see Backend."""
        if self._listener is not None:
            await self._listener.close()

    async def close(self) -> None:
        """End the threads; see Backend."""
        self._threads.close()


class TcpConnection:
    """The connections to one peer: one for each read, and idle ones, whose end signals the peer's end."""

    choice = TransportChoice(NAME, "works between any two hosts")
    max_reads = MAX_PEER_READS

    def __init__(self, peer: PoolDescription, units: Units, pool: LocalPool, threads: CopyThreads, lose: Lose) -> None:
        """Raise TransportUnavailable or PeerRefused for a peer without a valid endpoint."""
        self._peer = peer
        self._units = units
        self._address = endpoint.decode(Endpoint, peer, NAME)
        self._pool = pool
        self._threads = threads
        self._lose = lose
        self._idle: list[socket.socket] = []
        self._is_closed = False

    async def open_first(self) -> None:
        """Open an idle connection. Raises PeerLost, PeerRefused, TransportUnavailable."""
        self._keep(await self._open())

    def is_open(self) -> bool:
        """Return True: reads fail if the peer has ended."""
        return True

    def start(self, transfer: Transfer) -> "asyncio.Future[None]":
        """Receive in a thread, over an idle connection or a new one; see Connection."""
        if not self._idle:
            return asyncio.ensure_future(self._open_and_receive(transfer))
        sock = self._idle.pop()
        asyncio.get_running_loop().remove_reader(sock.fileno())
        sock.setblocking(True)  # uvloop makes every socket that it watches non-blocking
        return self._receive(sock, transfer)

    def close(self) -> None:
        """Close the idle connections; those of reads are closed when these have ended."""
        self._is_closed = True
        while self._idle:
            sock = self._idle.pop()
            asyncio.get_running_loop().remove_reader(sock.fileno())
            sock.close()

    async def _open_and_receive(self, transfer: Transfer) -> None:
        transfer.check()
        opening = asyncio.ensure_future(self._open())
        transfer.interrupt = opening.cancel
        try:
            sock = await opening
        except asyncio.CancelledError:
            transfer.check()
            raise
        except (PeerLost, PeerRefused):
            self._lose(transfer.peer, self)
            raise
        finally:
            del opening  # its error references this frame; see `threads`
        receiving = self._receive(sock, transfer)
        await settled(receiving)
        try:
            receiving.result()
        finally:
            del receiving

    def _receive(self, sock: socket.socket, transfer: Transfer) -> "asyncio.Future[None]":
        unit_bytes, memory = self._units.unit_bytes, self._pool.memory()

        def receive() -> None:
            try:
                tcp_frames.send_request(sock, transfer.remote)
                buffers = tcp_frames.unit_buffers(memory, unit_bytes, transfer.local)
                for buffer in tcp_frames.receive_response(sock, buffers):
                    transfer.landed(len(buffer) // unit_bytes)
                    transfer.check()
            except (OSError, PeerLost) as error:
                transfer.check()
                raise PeerLost(f"peer {transfer.peer} broke the connection: {error}") from error

        transfer.interrupt = partial(_shut_down, sock)
        transfer.ended = partial(self._give_back, sock)
        return self._threads.run(transfer, receive)

    async def _open(self) -> socket.socket:
        address = self._address
        sock = await open_connection(address.host, address.port, address.key, self._pool, self._peer)
        sock.setblocking(True)
        return sock

    def _give_back(self, sock: socket.socket, is_clean: bool) -> None:
        if is_clean and not self._is_closed and len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._keep(sock)
        else:
            sock.close()

    def _keep(self, sock: socket.socket) -> None:
        self._idle.append(sock)
        asyncio.get_running_loop().add_reader(sock.fileno(), self._lose, PeerId(self._peer.incarnation), self)


def _shut_down(sock: socket.socket) -> None:
    with suppress(OSError):  # the peer may have closed it first
        sock.shutdown(socket.SHUT_RDWR)


async def serve_reader(pool: LocalPool, sock: socket.socket, caller: Caller) -> None:
    """Serve an admitted caller until it closes the connection."""
    unit_bytes = unit_bytes_of(pool.block_bytes, caller.block_bytes)
    keep_alive(sock)
    sock.setblocking(True)
    serving = run_in_thread("baton-kv-tcp-serve", partial(serve_units, sock, pool, unit_bytes))
    try:
        await asyncio.shield(serving)
    finally:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        await serving  # the listener closes the socket next, so its thread must have ended


def serve_units(sock: socket.socket, pool: LocalPool, unit_bytes: int) -> None:
    """Respond to requests until the caller closes the connection or sends an invalid one; blocks."""
    memory = pool.memory()
    per_block = pool.block_bytes // unit_bytes
    try:
        while (units := tcp_frames.receive_request(sock)) is not None:
            wrong = next((unit for unit in units if unit >= pool.num_blocks * per_block), None)
            if wrong is None:
                buffers = tcp_frames.unit_buffers(memory, unit_bytes, units)
                tcp_frames.send_response(sock, tcp_frames.STATUS_UNITS, buffers)
            else:
                text = f"block {wrong // per_block} is not one of the pool's {pool.num_blocks}".encode()
                tcp_frames.send_response(sock, tcp_frames.STATUS_REFUSED, [memoryview(text)])
    except TransferError as error:
        logger.warning("closed a connection to the KV pool: %s", error)
    except OSError as error:
        logger.info("a reader of the KV pool disconnected: %s", error)
