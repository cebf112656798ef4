"""An event loop of its own for each call of the synchronous API."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def run_on_own_loop(work: Callable[[], Coroutine[object, object, T]]) -> T:
    """Run a coroutine to its end on a loop and a thread of its own: the caller's thread may have a running loop.

    If the wait is interrupted, as by Ctrl-C, the coroutine is cancelled and has ended before the exception is raised.
    """
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()
    outcome: Future[T] = Future()

    async def main() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        running.set_result((loop, task))
        return await work()

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(main()))
        except BaseException as error:
            outcome.set_exception(error)

    thread = Thread(target=run, name="baton-llm")
    try:
        thread.start()
        return outcome.result()
    except BaseException:
        running.add_done_callback(_cancel)  # also if the loop does not run yet
        if thread.is_alive():
            thread.join()
        raise


def _cancel(running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]]) -> None:
    loop, task = running.result()
    with suppress(RuntimeError):  # the loop is closed: the coroutine itself has failed
        loop.call_soon_threadsafe(task.cancel)
