"""Enforcement of deadlines."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from baton.router.admission.deadline import deadline_after, items_within, result_within
from baton.rpc.status import DeadlineExceeded


class News:
    """A stream whose next item waits for `go_on`; records that it was closed."""

    def __init__(self, num_at_once: int) -> None:
        self.go_on = asyncio.Event()
        self.closed = asyncio.Event()
        self._num_at_once = num_at_once

    async def stream(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self._num_at_once):
                yield number
            await self.go_on.wait()
            yield -1
        finally:
            await asyncio.sleep(0)
            self.closed.set()


def soon(delay_s: float = 0.03) -> float:
    return time.monotonic() + delay_s


def test_a_timeout_beyond_the_clock_is_no_deadline() -> None:
    now_s = time.monotonic()
    deadline_s = deadline_after(3.0)
    assert deadline_s is not None
    assert now_s + 3 <= deadline_s <= time.monotonic() + 3
    assert deadline_after(1e300) is None


async def test_deltas_before_the_deadline_are_unchanged() -> None:
    news = News(5)
    news.go_on.set()
    assert [each async for each in items_within(soon(60), news.stream())] == [0, 1, 2, 3, 4, -1]
    assert news.closed.is_set()


async def test_a_waiting_reader_gets_deadline_exceeded() -> None:
    news = News(2)
    limited = items_within(soon(), news.stream())
    assert [await anext(limited), await anext(limited)] == [0, 1]
    with pytest.raises(DeadlineExceeded, match="exceeded its deadline"):
        await anext(limited)
    assert news.closed.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_reader_in_another_task_gets_deadline_exceeded() -> None:
    news, noted = News(1), list[DeadlineExceeded]()
    async with aclosing(items_within(soon(), news.stream(), noted.append)) as limited:
        assert await asyncio.create_task(anext(limited)) == 0
        with pytest.raises(DeadlineExceeded):
            await asyncio.create_task(anext(limited))
    assert news.closed.is_set()
    assert "was being generated" in str(noted)


async def test_the_stream_is_closed_at_the_deadline_without_a_reader() -> None:
    news = News(2)
    limited = items_within(soon(), news.stream())
    assert await anext(limited) == 0
    await asyncio.wait_for(news.closed.wait(), 10)
    with pytest.raises(DeadlineExceeded):
        await anext(limited)
    with pytest.raises(StopAsyncIteration):
        await anext(limited)


async def test_a_cancellation_by_the_caller_is_not_a_deadline() -> None:
    news = News(1)

    async def read() -> None:
        async with aclosing(items_within(soon(60), news.stream())) as limited:
            async for _ in limited:
                pass

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert news.closed.is_set()


async def test_a_cancellation_at_the_same_moment_wins() -> None:
    news = News(0)
    limited = items_within(soon(), news.stream())
    reader = asyncio.create_task(anext(limited))
    await asyncio.sleep(0)
    time.sleep(0.05)  # noqa: ASYNC251  # both are due in one turn of the event loop
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await limited.aclose()


async def test_an_error_of_the_stream_is_not_a_deadline() -> None:
    async def broken() -> AsyncGenerator[int, None]:
        yield 1
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        [each async for each in items_within(soon(60), broken())]


async def test_a_result_after_the_deadline_is_deadline_exceeded() -> None:
    async def work(pause_s: float) -> int:
        await asyncio.sleep(pause_s)
        return 5

    assert await result_within(soon(60), work(0), "was worked on") == 5
    with pytest.raises(DeadlineExceeded, match="while it was worked on"):
        await result_within(soon(), work(60), "was worked on")


async def test_a_timeout_inside_the_work_is_not_a_deadline() -> None:
    async def work() -> int:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await result_within(soon(60), work(), "was worked on")
