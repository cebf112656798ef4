"""Several streams merged into one."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")

STARTS_PER_TURN = 4  # of the event loop: the start of a completion with thousands of options takes a millisecond


@dataclass(frozen=True, slots=True)
class _Ended:
    """End of a stream, with its error if it failed."""

    error: Exception | None


class StreamMerge(Generic[T]):
    """Tasks that read several streams into one bounded queue, so a slow reader slows the streams.

    A context manager, which cancels the tasks on exit.
    """

    def __init__(self, bound: int = 16) -> None:
        self._queue: asyncio.Queue[T | _Ended] = asyncio.Queue(bound)
        self._tasks: list[asyncio.Task[None]] = []
        self._num_open = 0

    async def add(self, stream: AsyncGenerator[T, None]) -> None:
        """Start to read another stream. Gives other tasks a turn after each few streams."""
        self._num_open += 1
        self._tasks.append(asyncio.create_task(self._read(stream)))
        if len(self._tasks) % STARTS_PER_TURN == 0:
            await asyncio.sleep(0)

    async def __aenter__(self) -> "StreamMerge[T]":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aiter__(self) -> AsyncIterator[T]:
        """Yield the items of all streams until each has ended. Raises the error of the first stream that fails."""
        while self._num_open:
            item = await self._queue.get()
            if not isinstance(item, _Ended):
                yield item
                continue
            self._num_open -= 1
            if item.error is not None:
                raise item.error

    async def _read(self, stream: AsyncGenerator[T, None]) -> None:
        error: Exception | None = None
        try:
            async with aclosing(stream):
                async for item in stream:
                    await self._queue.put(item)
        except Exception as caught:  # `__aiter__` raises it
            error = caught
        await self._queue.put(_Ended(error))
