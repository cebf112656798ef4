"""An event loop of its own for each call of the synchronous API."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def run_on_own_loop(work: Callable[[], Coroutine[object, object, T]]) -> T:
    """Run a coroutine to its end on a loop and a thread of its own: the caller's thread may have a running loop.

    If the wait is interrupted, as by Ctrl-C, the coroutine is cancelled and has ended before the exception is raised.
    """
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.set_result((asyncio.get_running_loop(), task))
        return await work()

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="baton-llm") as thread:
        outcome = thread.submit(asyncio.run, main())
        try:
            return outcome.result()
        except BaseException:
            loop, task = running.result()
            with suppress(RuntimeError):  # the loop is closed: the coroutine itself has failed
                loop.call_soon_threadsafe(task.cancel)
            raise
