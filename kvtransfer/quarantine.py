"""Blocks into which somebody may still write."""

import asyncio
from collections import Counter
from collections.abc import Iterable


class Quarantine:
    """Counts, per block, the transfers whose writes may still land; owned by a transport, used on its event loop.

    A transfer that was cancelled or timed out is not over: its blocks must not be used again before `wait_clear`
    returns.
    """

    def __init__(self) -> None:
        self._writers: Counter[int] = Counter()
        self._changed = asyncio.Condition()

    def hold(self, blocks: Iterable[int]) -> None:
        """A transfer into these blocks starts."""
        self._writers.update(blocks)

    async def release(self, blocks: Iterable[int]) -> None:
        """A transfer into these blocks has ended: nothing more can land."""
        async with self._changed:
            for block in blocks:
                self._writers[block] -= 1
                if self._writers[block] <= 0:
                    del self._writers[block]
            self._changed.notify_all()

    def __contains__(self, block: int) -> bool:
        return block in self._writers

    def __len__(self) -> int:
        return len(self._writers)

    async def wait_clear(self, blocks: Iterable[int]) -> None:
        """Returns once no transfer may write into any of these blocks."""
        wanted = set(blocks)
        async with self._changed:
            await self._changed.wait_for(lambda: wanted.isdisjoint(self._writers))
