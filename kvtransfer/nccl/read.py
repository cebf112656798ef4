"""One two-sided read, chunk by chunk."""

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np
from torch import Tensor

from baton.kvtransfer.base import Landed
from baton.kvtransfer.errors import PeerLost, TransferError
from baton.kvtransfer.nccl.communicator import PairGroup
from baton.kvtransfer.threads import run_in_thread, settled
from baton.kvtransfer.transfers import Transfer

MAX_ASKED = 2  # chunks: the peer knows the next one while it sends


class PairRead:
    """Asks for chunks, receives them beside the pool and copies them into it; one that is given up takes what it asked.

    Otherwise the next read over the same communicator would get what this one had asked for. `leaves_nothing` says that
    it will not; unless it does, the communicator is of no more use.
    """

    def __init__(
        self, sock: socket.socket, group: PairGroup, rows: Tensor, step: int, transfer: Transfer, landed: Landed
    ) -> None:
        """rows: our pool in units; step: units of a chunk."""
        self._sock = sock
        self._group = group
        self._rows = rows
        self._step = step
        self._transfer = transfer
        self._landed = landed
        self._asked: deque[Sequence[int]] = deque()  # our units of the chunks that come
        self._was_heard = True  # whatever we asked for
        self.leaves_nothing = False

    async def run(self, remote: Sequence[int], local: Sequence[int]) -> None:
        """Returns when all units are in our pool."""
        try:
            await self._take_all(remote, local)
        except PeerLost:
            raise
        except TransferError:
            while self._asked:
                await self._take(is_wanted=False)
            self.leaves_nothing = self._was_heard
            raise
        self.leaves_nothing = True

    async def _take_all(self, remote: Sequence[int], local: Sequence[int]) -> None:
        for start in range(0, len(remote), self._step):
            stop = start + self._step
            await self._ask(remote[start:stop], local[start:stop])
            if len(self._asked) == MAX_ASKED:
                await self._take()
        while self._asked:
            await self._take()

    async def _ask(self, remote: Sequence[int], local: Sequence[int]) -> None:
        message = np.array([len(remote), *remote], "<u4").tobytes()
        try:
            await asyncio.get_running_loop().sock_sendall(self._sock, message)
        except OSError as error:
            self._was_heard = False
            self._transfer.check()
            raise PeerLost(f"the peer broke the connection: {error}") from error
        self._asked.append(local)

    async def _take(self, is_wanted: bool = True) -> None:
        """Waits for the chunk that comes next."""
        receiving = run_in_thread("baton-kv-pair-receive", partial(self._receive, self._asked[0], is_wanted))
        await settled(receiving)
        try:
            receiving.result()
        finally:
            del receiving

    def _receive(self, units: Sequence[int], is_wanted: bool) -> None:
        chunk = self._group.receive(len(units), self._rows.shape[1])
        self._asked.popleft()  # not before: a chunk for which there was no memory is still to come
        if not is_wanted:
            return
        self._transfer.check()
        self._group.scatter(chunk, self._rows, units)
        self._landed(len(units))
        self._transfer.check()
