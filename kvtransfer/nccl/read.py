"""One two-sided read, chunk by chunk."""

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np
from torch import Tensor

from baton.kvtransfer.errors import PeerLost, TransferError
from baton.kvtransfer.nccl.communicator import PairGroup
from baton.kvtransfer.threads import run_in_thread, settled
from baton.kvtransfer.transfers import Transfer

MAX_ASKED = 2  # chunks requested ahead: the peer knows the next one while it sends


class PairRead:
    """A read that requests chunks, receives them into buffers and copies them into the pool.

    An aborted read still receives the chunks that it has requested; otherwise the next read over the same communicator
    would get them. `is_drained` is True if that succeeded; if not, the communicator must be aborted.
    """

    def __init__(self, sock: socket.socket, group: PairGroup, rows: Tensor, step: int, transfer: Transfer) -> None:
        """rows: our pool, [num_units, unit_bytes]; step: units per chunk."""
        self._sock = sock
        self._group = group
        self._rows = rows
        self._step = step
        self._transfer = transfer
        self._requested: deque[Sequence[int]] = deque()  # our units of the chunks still to be received
        self._were_requests_sent = True
        self.is_drained = False

    async def run(self) -> None:
        """Return when all units are in our pool."""
        try:
            await self._receive_all(self._transfer.remote, self._transfer.local)
        except PeerLost:
            raise
        except TransferError:
            while self._requested:
                await self._receive_next(is_wanted=False)
            self.is_drained = self._were_requests_sent
            raise
        self.is_drained = True

    async def _receive_all(self, remote: Sequence[int], local: Sequence[int]) -> None:
        for start in range(0, len(remote), self._step):
            stop = start + self._step
            await self._request(remote[start:stop], local[start:stop])
            if len(self._requested) == MAX_ASKED:
                await self._receive_next()
        while self._requested:
            await self._receive_next()

    async def _request(self, remote: Sequence[int], local: Sequence[int]) -> None:
        message = np.array([len(remote), *remote], "<u4").tobytes()
        try:
            await asyncio.get_running_loop().sock_sendall(self._sock, message)
        except OSError as error:
            self._were_requests_sent = False
            self._transfer.check()
            raise PeerLost(f"the peer broke the connection: {error}") from error
        self._requested.append(local)

    async def _receive_next(self, is_wanted: bool = True) -> None:
        """Receive the next requested chunk, and copy it into the pool if `is_wanted`."""
        receiving = run_in_thread("baton-kv-pair-receive", partial(self._receive, self._requested[0], is_wanted))
        await settled(receiving)
        try:
            receiving.result()
        finally:
            del receiving

    def _receive(self, units: Sequence[int], is_wanted: bool) -> None:
        chunk = self._group.receive(len(units), self._rows.shape[1])
        self._requested.popleft()  # only now: if memory ran out, the chunk has still to be received
        if not is_wanted:
            return
        self._transfer.check()
        self._group.scatter(chunk, self._rows, units)
        self._transfer.landed(len(units))
        self._transfer.check()
