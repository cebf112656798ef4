"""Blocking work in threads, awaited on the event loop.

An exception references the frames that it passed through, and these reference a pool. So none of these frames may
reference the future that holds the exception: the reference cycle would keep the pool's memory until the garbage
collector runs. `asyncio.wrap_future` creates such a cycle.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar


async def settled(future: "asyncio.Future[Any]") -> None:
    """Wait until a future is done, whatever its outcome; a cancellation of the caller is raised only then."""
    was_cancelled = False  # a flag, since a stored error would reference this frame; see the module's docstring
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            was_cancelled = True
    if was_cancelled:
        if not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not log it
        raise asyncio.CancelledError


async def all_or_none(*steps: Coroutine[Any, Any, None]) -> None:
    """Run all steps; if one fails or the caller is cancelled, cancel the others and raise the first error."""
    if len(steps) == 1:
        return await steps[0]
    tasks = [asyncio.ensure_future(each) for each in steps]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Failed:
    """The outcome of work that raised."""

    error: BaseException


class _Work(Generic[T]):
    def __init__(self, function: Callable[[], T], ended: "asyncio.Future[T]") -> None:
        self._function = function
        self._ended: asyncio.Future[T] | None = ended  # dropped when the work ends, to avoid a reference cycle

    def run(self) -> None:
        self._end(self._outcome())

    def _outcome(self) -> T | Failed:
        try:
            return self._function()
        except BaseException as error:
            return Failed(error)

    def _end(self, outcome: T | Failed) -> None:
        ended, self._ended = self._ended, None
        assert ended is not None
        end_soon(ended, outcome)


def run_in_thread(name: str, function: Callable[[], T]) -> "asyncio.Future[T]":
    """Run `function` in a new thread, for work that may block for long; called on the event loop."""
    return run_by(lambda run: threading.Thread(target=run, name=name, daemon=True).start(), function)


def run_by(start: Callable[[Callable[[], None]], object], function: Callable[[], T]) -> "asyncio.Future[T]":
    """Return a future of `function`'s result; `start` submits the callable it is given to some thread.

    Called on the event loop.
    """
    ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    start(_Work(function, ended).run)
    return ended


def end_soon(ended: "asyncio.Future[T]", outcome: T | Failed) -> None:
    """Resolve a future on its event loop, unless it was cancelled; callable from any thread."""
    with suppress(RuntimeError):  # the loop was closed, so nothing awaits the future
        ended.get_loop().call_soon_threadsafe(_end, ended, outcome)


def _end(ended: "asyncio.Future[T]", outcome: T | Failed) -> None:
    if ended.done():
        return
    if isinstance(outcome, Failed):
        ended.set_exception(outcome.error)
    else:
        ended.set_result(outcome)
