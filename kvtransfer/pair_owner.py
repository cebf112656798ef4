"""The owner's half of two-sided reads: sends what is asked for."""

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from kvtransfer.errors import PeerRefused, TransferError
from kvtransfer.local_pool import LocalPool
from kvtransfer.pair_group import OWNER, PairGroup, made, own_store
from kvtransfer.staging_control import receive_bytes, receive_word, send_words
from kvtransfer.tcp_connection import keep_alive
from kvtransfer.threads import run_in_thread
from kvtransfer.units import unit_bytes_of
from kvtransfer.waits import settled

logger = logging.getLogger(__name__)

MAX_ASKED = 2  # chunks: one is sent while the next is known


class PairOwner:
    """Serves a pool's units to readers, each over a communicator of its own."""

    def __init__(self, pool: LocalPool, host: str, timeout_s: float, chunk_bytes: int) -> None:
        self.pool = pool
        self.host = host
        self.timeout_s = timeout_s
        self.chunk_bytes = chunk_bytes

    async def serve(self, sock: socket.socket, block_bytes: int) -> None:
        """Serves an admitted caller, whose blocks are of `block_bytes`, until it closes."""
        keep_alive(sock)
        store, port = own_store(self.host, self.timeout_s)
        group: PairGroup | None = None
        try:
            await send_words(sock, port)
            device = self.pool.tensor.device
            make = partial(PairGroup, store, OWNER, self.host, device, self.timeout_s)
            try:
                group = await made(make)
            except RuntimeError as error:
                logger.warning("no communicator with a reader of the KV pool: %s", str(error).splitlines()[0])
                await self._wait_for_end(sock)
                return
            await self._send_all(sock, group, unit_bytes_of(self.pool.block_bytes, block_bytes))
        except PeerRefused as error:
            logger.warning("closed a connection to the KV pool: %s", error)
        except (TransferError, OSError) as error:
            logger.info("a reader of the KV pool went away: %s", error)
        finally:
            if group is not None:
                await settled(run_in_thread("baton-kv-pair-end", group.abort))

    async def _wait_for_end(self, sock: socket.socket) -> None:
        """So that the reader sees that this side is there and it is the communicator that is not."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.timeout_s):
                await asyncio.get_running_loop().sock_recv(sock, 1)

    async def _send_all(self, sock: socket.socket, group: PairGroup, unit_bytes: int) -> None:
        asked: asyncio.Queue[Sequence[int]] = asyncio.Queue()
        tasks = [
            asyncio.ensure_future(self._hear(sock, asked, unit_bytes)),
            asyncio.ensure_future(self._send(asked, group, unit_bytes)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            aborting = run_in_thread("baton-kv-pair-abort", group.abort)  # or a send would wait for who is gone
            for task in tasks:
                task.cancel()
            await settled(asyncio.gather(aborting, *tasks, return_exceptions=True))
        failures = [task.exception() for task in tasks if not task.cancelled()]
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
            if not 0 < count <= most or asked.qsize() >= MAX_ASKED:
                raise PeerRefused(f"a caller asked for {count} units, at most {most} are sent at once")
            units: list[int] = np.frombuffer(await receive_bytes(sock, 4 * count), "<u4").tolist()
            if max(units) >= num_units:
                raise PeerRefused(f"a caller asked for unit {max(units)} of {num_units}")
            asked.put_nowait(units)

    async def _send(self, asked: "asyncio.Queue[Sequence[int]]", group: PairGroup, unit_bytes: int) -> None:
        rows = self.pool.rows(unit_bytes)

        while True:
            sending = run_in_thread("baton-kv-pair-send", partial(group.send, rows, await asked.get()))
            await settled(sending)
            try:
                sending.result()
            finally:
                del sending
