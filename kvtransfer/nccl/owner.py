"""The owner's half of two-sided reads: sends the requested units."""

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from baton.kvtransfer.cuda_streams import SideStreams
from baton.kvtransfer.errors import (
    PeerLost,
    PeerRefused,
    TransferError,
    TransferFailed,
    TransportUnavailable,
    first_line,
)
from baton.kvtransfer.handshake import Caller
from baton.kvtransfer.listener import ended
from baton.kvtransfer.local_pool import LocalPool, unit_bytes_of
from baton.kvtransfer.nccl.communicator import OWNER, PairGroup, own_store
from baton.kvtransfer.nccl.communicators import END_S, CommunicatorFactory, CommunicatorLimit
from baton.kvtransfer.staged.control import receive_bytes, receive_word, send_words
from baton.kvtransfer.tcp.connection import keep_alive
from baton.kvtransfer.threads import run_in_thread, settled

logger = logging.getLogger(__name__)

MAX_ASKED = 2  # requested chunks per reader: one is sent while the next is queued
NO_STORE = 0  # sent instead of the store's port if no communicator is available


class PairOwner:
    """Serves a pool's units to readers, with one communicator per reader."""

    def __init__(self, pool: LocalPool, host: str, timeout_s: float, chunk_bytes: int, streams: SideStreams) -> None:
        self.pool = pool
        self.host = host
        self.timeout_s = timeout_s
        self.chunk_bytes = chunk_bytes
        self.streams = streams
        self.factory = CommunicatorFactory()
        self.limit = CommunicatorLimit()

    async def serve(self, sock: socket.socket, caller: Caller) -> None:
        """Serve an admitted caller until it closes the connection."""
        keep_alive(sock)
        group: PairGroup | None = None
        try:
            group = await self._make_group(sock)
            if group is not None:
                await self._serve_requests(sock, group, unit_bytes_of(self.pool.block_bytes, caller.block_bytes))
        except (PeerRefused, TransferFailed) as error:
            logger.warning("closed a connection to the KV pool: %s", error)
        except (TransferError, OSError) as error:
            logger.info("a reader of the KV pool disconnected: %s", error)
        finally:
            self.limit.release(sock)
            if group is not None:
                self.factory.end(group)

    async def _make_group(self, sock: socket.socket) -> PairGroup | None:
        """Create the communicator; None if that fails, which the reader has noticed. Raises PeerLost if it ends."""
        try:
            self.factory.require_room()
            self.limit.acquire(sock, partial(disconnect, sock))
            store, port = own_store(self.host, self.timeout_s)
        except (TransportUnavailable, RuntimeError, OSError) as error:
            logger.warning("no communicator for a reader of the KV pool: %s", first_line(error))
            await send_words(sock, NO_STORE)
            await self._wait_for_end(sock)
            return None
        await send_words(sock, port)
        device = self.pool.tensor.device
        make = partial(PairGroup, store, OWNER, self.host, device, self.timeout_s, self.streams)
        making = asyncio.ensure_future(self.factory.make(make))
        try:
            await self._wait_made(sock, making)
            return making.result()
        except RuntimeError as error:
            logger.warning("no communicator with a reader of the KV pool: %s", first_line(error))
        finally:
            making.cancel()
            del making  # its error references this frame; see `threads`
        await self._wait_for_end(sock)
        return None

    async def _wait_made(self, sock: socket.socket, making: "asyncio.Task[PairGroup]") -> None:
        """Wait until `making` has ended. Raises PeerLost if the reader ends first."""
        ending = asyncio.ensure_future(ended(sock))
        try:
            await asyncio.wait({making, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            await asyncio.wait({ending})  # it must stop watching the socket before `_receive_requests` reads it
        if not making.done():
            raise PeerLost("it ended while the communicator was being created")

    async def _wait_for_end(self, sock: socket.socket) -> None:
        """Keep the connection open for a while: the reader then blames the communicator, not a lost peer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.timeout_s):
                await asyncio.get_running_loop().sock_recv(sock, 1)

    async def _serve_requests(self, sock: socket.socket, group: PairGroup, unit_bytes: int) -> None:
        requests: asyncio.Queue[Sequence[int]] = asyncio.Queue(MAX_ASKED)
        tasks = [
            asyncio.ensure_future(self._receive_requests(sock, requests, unit_bytes)),
            asyncio.ensure_future(self._send(sock, requests, group, unit_bytes)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            aborting = self.factory.end(group)  # otherwise a send may wait for a reader that has ended
            for task in tasks:
                task.cancel()
            await settled(asyncio.ensure_future(asyncio.wait({aborting, *tasks}, timeout=END_S)))
        failures = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        tasks.clear()  # no error may reference itself through the frames that it passed; see `threads`
        try:
            for failure in failures:
                if failure is not None:
                    raise failure
        finally:
            failures.clear()
            failure = None

    async def _receive_requests(
        self, sock: socket.socket, requests: "asyncio.Queue[Sequence[int]]", unit_bytes: int
    ) -> None:
        max_units, num_units = max(1, self.chunk_bytes // unit_bytes), self.pool.num_bytes // unit_bytes
        while True:
            count = await receive_word(sock)
            self.limit.mark_busy(sock)
            if not 0 < count <= max_units:
                raise PeerRefused(f"a caller requested {count} units, at most {max_units} are sent at once")
            if requests.full():
                raise PeerRefused(f"a caller requested more than {MAX_ASKED} chunks ahead")
            units: list[int] = np.frombuffer(await receive_bytes(sock, 4 * count), "<u4").tolist()
            if max(units) >= num_units:
                raise PeerRefused(f"a caller requested unit {max(units)} of {num_units}")
            requests.put_nowait(units)

    async def _send(
        self, sock: socket.socket, requests: "asyncio.Queue[Sequence[int]]", group: PairGroup, unit_bytes: int
    ) -> None:
        rows = self.pool.rows(unit_bytes)

        while True:
            if requests.empty():
                self.limit.mark_idle(sock)
            sending = run_in_thread("baton-kv-pair-send", partial(group.send, rows, await requests.get()))
            await settled(sending)
            try:
                sending.result()
            finally:
                del sending


def disconnect(sock: socket.socket) -> None:
    """Close a connection whose communicator is evicted; its reader reconnects when it needs one again."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
