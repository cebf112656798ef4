"""Where a transport's peers come in."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from baton.kvtransfer.errors import TransferError
from baton.kvtransfer.handshake import Caller, admit
from baton.kvtransfer.local_pool import LocalPool


def is_open(sock: socket.socket) -> bool:
    """Whether the other side of a non-blocking connection that carries nothing is still there."""
    try:
        return sock.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


async def readable(sock: socket.socket) -> None:
    """Returns when there is something to read, or the connection has ended; takes nothing of it."""
    loop = asyncio.get_running_loop()
    has_come = asyncio.Event()
    loop.add_reader(sock.fileno(), has_come.set)
    try:
        await has_come.wait()
    finally:
        loop.remove_reader(sock.fileno())


async def ended(sock: socket.socket) -> None:
    """Returns when the connection has ended; never if the other side says something first, which is left to be read."""
    await readable(sock)
    if is_open(sock):
        await asyncio.Event().wait()


logger = logging.getLogger(__name__)

HANDSHAKE_DEADLINE_S = 10.0


class Listener:
    """Owns a listening socket; greets callers on the event loop and hands those it admits to `serve`.

    `serve` is told who the caller is, and owns its connection from then on, for as long as it runs; afterwards the
    socket is closed.
    """

    def __init__(
        self, sock: socket.socket, pool: LocalPool, key: str, serve: Callable[[socket.socket, Caller], Awaitable[None]]
    ) -> None:
        sock.setblocking(False)
        sock.listen(128)
        self._sock = sock
        self._pool = pool
        self._key = key
        self._serve = serve
        self._tasks: set[asyncio.Task[None]] = set()  # that accept, and one for each caller
        self._begin(self._accept())

    async def close(self) -> None:
        """Ends every connection that came in."""
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
                # Out of descriptors, or the caller was gone at once: neither may end the listener.
                logger.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(0.1)
                continue
            self._begin(self._meet(sock))

    async def _meet(self, sock: socket.socket) -> None:
        with sock:
            sock.setblocking(False)
            try:
                async with asyncio.timeout(HANDSHAKE_DEADLINE_S):
                    caller = await admit(sock, self._pool, self._key)
            except (TransferError, TimeoutError) as error:
                logger.warning("refused a connection to the KV pool: %s", error or "no greeting came")
                return
            try:
                await self._serve(sock, caller)
            except OSError as error:
                logger.info("a reader of the KV pool went away: %s", error)
