"""Until when a request is wanted, and its end when that time is over."""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine
from types import TracebackType
from typing import Generic, TypeVar

from baton.router.request_context import RequestContext
from baton.rpc.status import DeadlineExceeded

T = TypeVar("T")

MAX_TIMEOUT_S = 365 * 86400.0  # a longer one is none: timers are not made for it


def deadline_of(context: RequestContext, default_timeout_s: float | None) -> float | None:
    """When the request's time is over, by `time.monotonic`; None: never."""
    timeout_s = default_timeout_s if context.timeout_s is None else context.timeout_s
    return None if timeout_s is None or timeout_s > MAX_TIMEOUT_S else context.arrived_s + timeout_s


def exceeded(doing: str) -> DeadlineExceeded:
    """The error for a request whose time was over while this was going on."""
    return DeadlineExceeded(f"the request's time was over while it {doing}")


async def result_within(deadline_s: float, work: Coroutine[object, object, T], doing: str) -> T:
    """What `work` returns; it is cancelled when the time is over (DeadlineExceeded)."""
    try:
        async with asyncio.timeout(deadline_s - time.monotonic()) as limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise exceeded(doing) from None
        raise


async def news_within(deadline_s: float, news: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """What `news` yields, until the time is over: then it is closed at once and DeadlineExceeded raised.

    One timer serves for all of it, and whatever task reads: streams are begun by one task and ended by another.
    """
    expiry = _Expiry(news)
    timer = asyncio.get_running_loop().call_later(deadline_s - time.monotonic(), expiry.fire)
    try:
        while True:
            with expiry:
                try:
                    item = await anext(news)
                except StopAsyncIteration:
                    return
            yield item
    finally:
        timer.cancel()
        await expiry.close()


class _Expiry(Generic[T]):
    """Ends the reading of news: the task that waits for them is cancelled, or they are closed if none waits.

    A context manager around each wait; it turns its own cancellation, and no other, into DeadlineExceeded.
    """

    def __init__(self, news: AsyncGenerator[T, None]) -> None:
        self._news = news
        self._fired = False
        self._reader: asyncio.Task[object] | None = None
        self._num_cancelling = 0
        self._cancelled = False
        self._closing: asyncio.Task[None] | None = None

    def fire(self) -> None:
        """The time is over."""
        self._fired = True
        if self._reader is None:  # a slow client has not taken what came; the workers need not go on for it
            self._closing = asyncio.create_task(self._close_news())
        else:
            self._cancelled = True
            self._reader.cancel()

    async def close(self) -> None:
        """Returns once the news are closed."""
        if self._closing is not None:
            await self._closing
        await self._news.aclose()

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

    async def _close_news(self) -> None:
        await self._news.aclose()
