"""The owner's half of staged reads: copies requested units into frames and tracks the frames' readers."""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial

import numpy as np

from baton.kvtransfer.errors import PeerRefused, TransferError, TransferFailed
from baton.kvtransfer.handshake import Caller
from baton.kvtransfer.local_pool import LocalPool, unit_bytes_of
from baton.kvtransfer.staged.control import (
    MAX_STAGED,
    REFUSED,
    RETURN,
    RETURNED,
    STAGE,
    STAGED,
    receive_bytes,
    receive_word,
    send_words,
)
from baton.kvtransfer.staged.copy import StagingCopy
from baton.kvtransfer.staged.window import ReadersFrames, Share
from baton.kvtransfer.tcp.connection import keep_alive
from baton.kvtransfer.threads import run_by, settled

logger = logging.getLogger(__name__)

LEND_S = 5.0  # before a reader loses a frame and its connection; reading a frame takes about a hundredth of this


class StagingOwner:
    """Serves a pool's units through frames, at most two per connection."""

    def __init__(
        self, pool: LocalPool, frames: ReadersFrames, frame_blocks: int, copy: StagingCopy, threads: Executor
    ) -> None:
        self.pool = pool
        self.frames = frames
        self.frame_blocks = frame_blocks
        self.copy = copy
        self.threads = threads

    async def serve(self, sock: socket.socket, caller: Caller) -> None:
        """Serve an admitted caller until it closes the connection."""
        keep_alive(sock)
        unit_bytes = unit_bytes_of(self.pool.block_bytes, caller.block_bytes)
        try:
            await _Connection(self, sock, unit_bytes, self.frames.share_of(caller.incarnation)).serve()
        except (PeerRefused, TransferFailed) as error:
            logger.warning("closed a connection to the KV pool: %s", error)
        except (TransferError, OSError, TimeoutError) as error:
            logger.info("a reader of the KV pool disconnected: %s", error)


class _Connection:
    """The connection to one reader: receives its requests and fills frames concurrently."""

    def __init__(self, owner: StagingOwner, sock: socket.socket, unit_bytes: int, frames: Share) -> None:
        self._owner = owner
        self._sock = sock
        self._frames = frames
        self._unit_bytes = unit_bytes
        self._per_block = owner.pool.block_bytes // unit_bytes
        self._requests: asyncio.Queue[Sequence[int]] = asyncio.Queue(MAX_STAGED)
        self._lent: deque[tuple[int, asyncio.TimerHandle]] = deque()
        self._num_staged = 0  # frames lent or requested
        self._send_lock = asyncio.Lock()

    async def serve(self) -> None:
        tasks = [asyncio.ensure_future(each) for each in (self._receive_requests(), self._fill())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await settled(asyncio.gather(*tasks, return_exceptions=True))
            while self._lent:
                self._take_back()
        failures = [task.exception() for task in tasks if not task.cancelled()]
        tasks.clear()  # no error may reference itself through the frames that it passed; see `threads`
        try:
            for failure in failures:
                if failure is not None:
                    raise failure
        finally:
            failures.clear()
            failure = None

    async def _receive_requests(self) -> None:
        while True:
            what = await receive_word(self._sock)
            if what == RETURN and self._lent:
                self._take_back()
                await self._send(RETURNED)
            elif what == STAGE and self._num_staged < MAX_STAGED:
                self._num_staged += 1
                self._requests.put_nowait(await self._receive_units())
            else:
                raise PeerRefused(f"a caller sent message {what} with {self._num_staged} frames lent or requested")

    async def _receive_units(self) -> list[int]:
        count, max_units = await receive_word(self._sock), self._owner.frame_blocks * self._per_block
        if not 0 < count <= max_units:
            raise PeerRefused(f"a caller requested {count} units, a frame has {max_units}")
        units: list[int] = np.frombuffer(await receive_bytes(self._sock, 4 * count), "<u4").tolist()
        wrong = next((unit for unit in units if unit >= self._owner.pool.num_blocks * self._per_block), None)
        if wrong is not None:
            blocks = self._owner.pool.num_blocks
            text = f"block {wrong // self._per_block} is not one of the pool's {blocks}".encode()
            async with self._send_lock:
                await send_words(self._sock, REFUSED, len(text))
                await asyncio.get_running_loop().sock_sendall(self._sock, text)
            raise PeerRefused(f"a caller requested block {wrong // self._per_block} of {blocks}")
        return units

    async def _fill(self) -> None:
        owner, frame_units = self._owner, self._owner.frame_blocks * self._per_block
        while True:
            units = await self._requests.get()
            frame = await self._frames.borrow()
            copy = partial(owner.copy.copy_out, units, self._unit_bytes, frame * frame_units)
            copied = run_by(owner.threads.submit, copy)
            try:
                await settled(copied)
                copied.result()
            except BaseException:
                self._frames.give_back(frame)
                raise
            finally:
                del copied
            self._lent.append((frame, asyncio.get_running_loop().call_later(LEND_S, _disconnect, self._sock)))
            await self._send(STAGED, frame)

    async def _send(self, *numbers: int) -> None:
        async with self._send_lock:
            await send_words(self._sock, *numbers)

    def _take_back(self) -> None:
        frame, timer = self._lent.popleft()
        timer.cancel()
        self._num_staged -= 1
        self._frames.give_back(frame)


def _disconnect(sock: socket.socket) -> None:
    """Close the connection of a reader that has not returned a frame in time."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
