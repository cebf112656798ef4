"""Blocks into which a transfer may still write."""

import asyncio
from collections import Counter
from collections.abc import Iterable


class Quarantine:
    """A count per block of the transfers whose writes may still land; owned by a transport, used on its event loop.

    A transfer that was cancelled or timed out may still write: its blocks must not be reused before `wait_clear`
    returns.
    """

    def __init__(self) -> None:
        self._writers: Counter[int] = Counter()
        self._waiters: list[asyncio.Future[None]] = []

    def hold(self, blocks: Iterable[int]) -> None:
        """Count a transfer into these blocks that starts."""
        self._writers.update(blocks)

    def release(self, blocks: Iterable[int]) -> None:
        """Uncount a transfer into these blocks whose writes can no longer land."""
        for block in blocks:
            self._writers[block] -= 1
            if self._writers[block] <= 0:
                del self._writers[block]
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def __contains__(self, block: int) -> bool:
        return block in self._writers

    def __len__(self) -> int:
        return len(self._writers)

    async def wait_clear(self, blocks: Iterable[int]) -> None:
        """Wait until no transfer may write into any of these blocks."""
        wanted = set(blocks)
        while not wanted.isdisjoint(self._writers):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
