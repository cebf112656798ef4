"""Deadlines of requests, and their enforcement."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from types import TracebackType
from typing import Generic, TypeVar

from baton.rpc.status import DeadlineExceeded

T = TypeVar("T")

MAX_TIMEOUT_S = 365 * 86400.0  # longer timeouts count as none: event loop timers do not support them


def deadline_after(timeout_s: float) -> float | None:
    """Return the deadline of a request that arrives now, on the clock of `time.monotonic`; None: no deadline."""
    return None if timeout_s > MAX_TIMEOUT_S else time.monotonic() + timeout_s


def exceeded(doing: str) -> DeadlineExceeded:
    """Return the error for a request that exceeded its deadline. `doing`: a verb phrase, such as "was tokenised"."""
    return DeadlineExceeded(f"the request exceeded its deadline while it {doing}")


async def result_within(deadline_s: float, work: Coroutine[object, object, T], doing: str) -> T:
    """Return the result of `work`. Cancels it at the deadline and raises DeadlineExceeded."""
    try:
        async with asyncio.timeout(deadline_s - time.monotonic()) as limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise exceeded(doing) from None
        raise


async def items_within(
    deadline_s: float,
    stream: AsyncGenerator[T, None],
    expired: Callable[[DeadlineExceeded], None] = lambda _: None,
) -> AsyncGenerator[T, None]:
    """Yield the items of `stream`. Closes it at the deadline, calls `expired` and raises DeadlineExceeded.

    A single timer covers the whole stream, also if several tasks read it in turn: one task may begin a stream and
    another end it.
    """
    expiry = _Expiry(stream, expired)
    timer = asyncio.get_running_loop().call_later(deadline_s - time.monotonic(), expiry.fire)
    try:
        while True:
            with expiry:
                try:
                    item = await anext(stream)
                except StopAsyncIteration:
                    return
            yield item
    finally:
        timer.cancel()
        await expiry.close()


class _Expiry(Generic[T]):
    """Ends a stream at its deadline: cancels the task that waits for an item, or closes the stream if none waits.

    A context manager around each wait. It converts its own cancellation, and no other, to DeadlineExceeded.
    """

    def __init__(self, stream: AsyncGenerator[T, None], expired: Callable[[DeadlineExceeded], None]) -> None:
        self._stream = stream
        self._expired = expired
        self._fired = False
        self._reader: asyncio.Task[object] | None = None
        self._num_cancelling = 0
        self._cancelled = False
        self._closing: asyncio.Task[None] | None = None

    def fire(self) -> None:
        """End the stream: the deadline has passed."""
        self._fired = True
        self._expired(exceeded("was being generated"))
        if self._reader is None:  # a slow client still reads the last item; close the stream to free the workers
            self._closing = asyncio.create_task(self._close_stream())
        else:
            self._cancelled = True
            self._reader.cancel()

    async def close(self) -> None:
        """Close the stream, and wait until it is closed."""
        if self._closing is not None:
            await self._closing
        await self._stream.aclose()

    def __enter__(self) -> None:
        if self._fired:
            raise exceeded("was being generated")
        self._reader = asyncio.current_task()
        assert self._reader is not None
        self._num_cancelling = self._reader.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        reader, self._reader = self._reader, None
        if not self._cancelled or reader is None:
            return
        self._cancelled = False
        if reader.uncancel() <= self._num_cancelling and isinstance(error, asyncio.CancelledError):
            raise exceeded("was being generated") from None

    async def _close_stream(self) -> None:
        await self._stream.aclose()
