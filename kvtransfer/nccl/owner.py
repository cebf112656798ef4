"""The owner's half of two-sided reads: sends what is asked for."""

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
from baton.kvtransfer.local_pool import LocalPool
from baton.kvtransfer.nccl.communicator import OWNER, PairGroup, own_store
from baton.kvtransfer.nccl.communicator_factory import END_S, CommunicatorFactory
from baton.kvtransfer.nccl.communicator_limit import CommunicatorLimit
from baton.kvtransfer.staged.control import receive_bytes, receive_word, send_words
from baton.kvtransfer.tcp.connection import keep_alive
from baton.kvtransfer.threads import run_in_thread, settled
from baton.kvtransfer.units import unit_bytes_of

logger = logging.getLogger(__name__)

MAX_ASKED = 2  # chunks: one is sent while the next is known
NO_STORE = 0  # in the place of the store's port: there is no communicator to be had


class PairOwner:
    """Serves a pool's units to readers, each over a communicator of its own."""

    def __init__(self, pool: LocalPool, host: str, timeout_s: float, chunk_bytes: int, streams: SideStreams) -> None:
        self.pool = pool
        self.host = host
        self.timeout_s = timeout_s
        self.chunk_bytes = chunk_bytes
        self.streams = streams
        self.making = CommunicatorFactory()
        self.seats = CommunicatorLimit()

    async def serve(self, sock: socket.socket, caller: Caller) -> None:
        """Serves an admitted caller until it closes."""
        keep_alive(sock)
        group: PairGroup | None = None
        try:
            group = await self._group_with(sock)
            if group is not None:
                await self._send_all(sock, group, unit_bytes_of(self.pool.block_bytes, caller.block_bytes))
        except (PeerRefused, TransferFailed) as error:
            logger.warning("closed a connection to the KV pool: %s", error)
        except (TransferError, OSError) as error:
            logger.info("a reader of the KV pool went away: %s", error)
        finally:
            self.seats.leave(sock)
            if group is not None:
                self.making.end(group)

    async def _group_with(self, sock: socket.socket) -> PairGroup | None:
        """None if there is none to be had, which the reader has seen then. Raises PeerLost if it ends meanwhile."""
        try:
            self.making.require_room()
            self.seats.take(sock, partial(_end, sock))
            store, port = own_store(self.host, self.timeout_s)
        except (TransportUnavailable, RuntimeError, OSError) as error:
            logger.warning("no communicator for a reader of the KV pool: %s", first_line(error))
            await send_words(sock, NO_STORE)
            await self._wait_for_end(sock)
            return None
        await send_words(sock, port)
        device = self.pool.tensor.device
        make = partial(PairGroup, store, OWNER, self.host, device, self.timeout_s, self.streams)
        making = asyncio.ensure_future(self.making.make(make))
        try:
            await self._while_there(sock, making)
            return making.result()
        except RuntimeError as error:
            logger.warning("no communicator with a reader of the KV pool: %s", first_line(error))
        finally:
            making.cancel()
            del making  # its error knows this frame; see `threads`
        await self._wait_for_end(sock)
        return None

    async def _while_there(self, sock: socket.socket, making: "asyncio.Task[PairGroup]") -> None:
        """Returns when the group is made, or not to be made. Raises PeerLost when the reader ends."""
        ending = asyncio.ensure_future(ended(sock))
        try:
            await asyncio.wait({making, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            await asyncio.wait({ending})  # it has looked at the socket, which others read from now on
        if not making.done():
            raise PeerLost("it ended while the communicator was being made")

    async def _wait_for_end(self, sock: socket.socket) -> None:
        """So that the reader sees that this side is there and it is the communicator that is not."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.timeout_s):
                await asyncio.get_running_loop().sock_recv(sock, 1)

    async def _send_all(self, sock: socket.socket, group: PairGroup, unit_bytes: int) -> None:
        asked: asyncio.Queue[Sequence[int]] = asyncio.Queue()
        tasks = [
            asyncio.ensure_future(self._hear(sock, asked, unit_bytes)),
            asyncio.ensure_future(self._send(sock, asked, group, unit_bytes)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            aborting = self.making.end(group)  # or a send would wait for who is gone
            for task in tasks:
                task.cancel()
            await settled(asyncio.ensure_future(asyncio.wait({aborting, *tasks}, timeout=END_S)))
        failures = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        tasks.clear()  # no error may know itself by the frames that it went through; see `threads`
        try:
            for failure in failures:
                if failure is not None:
                    raise failure
        finally:
            failures.clear()
            failure = None

    async def _hear(self, sock: socket.socket, asked: "asyncio.Queue[Sequence[int]]", unit_bytes: int) -> None:
        most, num_units = max(1, self.chunk_bytes // unit_bytes), self.pool.num_bytes // unit_bytes
        while True:
            count = await receive_word(sock)
            self.seats.use(sock)
            if not 0 < count <= most or asked.qsize() >= MAX_ASKED:
                raise PeerRefused(f"a caller asked for {count} units, at most {most} are sent at once")
            units: list[int] = np.frombuffer(await receive_bytes(sock, 4 * count), "<u4").tolist()
            if max(units) >= num_units:
                raise PeerRefused(f"a caller asked for unit {max(units)} of {num_units}")
            asked.put_nowait(units)

    async def _send(
        self, sock: socket.socket, asked: "asyncio.Queue[Sequence[int]]", group: PairGroup, unit_bytes: int
    ) -> None:
        rows = self.pool.rows(unit_bytes)

        while True:
            if asked.empty():
                self.seats.rest(sock)
            sending = run_in_thread("baton-kv-pair-send", partial(group.send, rows, await asked.get()))
            await settled(sending)
            try:
                sending.result()
            finally:
                del sending


def _end(sock: socket.socket) -> None:
    """Ends a connection whose communicator somebody else shall have; its reader makes another when it needs one."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
