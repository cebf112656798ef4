"""The listening side of a transport: accepts, greets and serves its peers."""

import asyncio
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from baton.kvtransfer.errors import TransferError
from baton.kvtransfer.handshake import Caller, admit
from baton.kvtransfer.local_pool import LocalPool


def is_open(sock: socket.socket) -> bool:
    """Return whether an idle, non-blocking connection is still open on the other side."""
    try:
        return sock.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


async def readable(sock: socket.socket) -> None:
    """Wait until there is something to read or the connection has ended; consume nothing."""
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(sock.fileno(), is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(sock.fileno())


async def ended(sock: socket.socket) -> None:
    """Wait until the connection has ended. Never returns if data arrives first; the data stays unread."""
    await readable(sock)
    if is_open(sock):
        await asyncio.Event().wait()


logger = logging.getLogger(__name__)

HANDSHAKE_DEADLINE_S = 10.0
MAX_HANDSHAKES = 256  # at the same time; each takes a descriptor before its peer is authenticated


class Listener:
    """A listening socket that greets callers with the key on the event loop, and passes those it admits to `serve`.

    `serve` owns the connection while it runs; afterwards the listener closes the socket.
    """

    def __init__(
        self, sock: socket.socket, pool: LocalPool, serve: Callable[[socket.socket, Caller], Awaitable[None]]
    ) -> None:
        self.key = secrets.token_hex(16)  # sent to peers with the address
        sock.setblocking(False)
        sock.listen(128)
        self._sock = sock
        self._pool = pool
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()  # one that accepts, and one per caller
        self._handshakes: dict[asyncio.Timeout, None] = {}  # in progress, the oldest first
        self._begin(self._accept())

    @property
    def address(self) -> tuple[str, int]:
        """Host and port at which peers reach a TCP socket."""
        host, port = self._sock.getsockname()[:2]
        return host, port

    async def close(self) -> None:
        """Close the listening socket and every accepted connection."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sock.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._sock)
            except OSError as error:
                # Out of descriptors, or the caller disconnected at once: neither may end the listener.
                logger.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(0.1)
                continue
            self._begin(self._meet(sock))

    async def _meet(self, sock: socket.socket) -> None:
        with sock:
            sock.setblocking(False)
            try:
                caller = await self._admit(sock)
            except (TransferError, TimeoutError) as error:
                logger.warning("refused a connection to the KV pool: %s", error or "the caller sent no greeting")
                return
            try:
                await self._serve(sock, caller)
            except OSError as error:
                logger.info("a reader of the KV pool disconnected: %s", error)

    async def _admit(self, sock: socket.socket) -> Caller:
        """Return the caller. Raises TransferError, or TimeoutError if it is too slow, or the slowest of too many."""
        async with asyncio.timeout(HANDSHAKE_DEADLINE_S) as limit:
            self._handshakes[limit] = None
            try:
                if len(self._handshakes) > MAX_HANDSHAKES:
                    oldest = next(iter(self._handshakes))
                    del self._handshakes[oldest]
                    if not oldest.expired():
                        oldest.reschedule(asyncio.get_running_loop().time())
                return await admit(sock, self._pool, self.key)
            finally:
                self._handshakes.pop(limit, None)
