"""Blocking work beside the event loop.

An error knows the frames that it went through and those that called them, and these know a pool. So none of them may
know the future that has the error: in such a reference cycle the pool's memory would wait for the garbage collector. It
would with `asyncio.wrap_future`, for one.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar


async def settled(future: "asyncio.Future[Any]") -> None:
    """Returns when a future has ended, however that was; a cancellation of the caller is raised only then."""
    was_cancelled = False  # and not the error, which would know this frame; see `threads`
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            was_cancelled = True
    if was_cancelled:
        if not future.cancelled():
            future.exception()  # which is nobody's any more
        raise asyncio.CancelledError


async def all_or_none(*steps: Coroutine[Any, Any, None]) -> None:
    """Returns when all are done; when one fails, or this is cancelled, ends the others and raises the first error."""
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
    """How work ended that raised."""

    error: BaseException


class _Work(Generic[T]):
    def __init__(self, function: Callable[[], T], ended: "asyncio.Future[T]") -> None:
        self._function = function
        self._ended: asyncio.Future[T] | None = ended  # until then

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
    """Runs `function` in a thread of its own, for work that may block long; called on the event loop."""
    return run_by(lambda run: threading.Thread(target=run, name=name, daemon=True).start(), function)


def run_by(start: Callable[[Callable[[], None]], object], function: Callable[[], T]) -> "asyncio.Future[T]":
    """A future of what `function` gives; `start` has some thread run what it is given. Called on the event loop."""
    ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    start(_Work(function, ended).run)
    return ended


def end_soon(ended: "asyncio.Future[T]", outcome: T | Failed) -> None:
    """Has a future end on its event loop, unless it was cancelled; from any thread."""
    with suppress(RuntimeError):  # the loop was closed: nobody waits any more
        ended.get_loop().call_soon_threadsafe(_end, ended, outcome)


def _end(ended: "asyncio.Future[T]", outcome: T | Failed) -> None:
    if ended.done():
        return
    if isinstance(outcome, Failed):
        ended.set_exception(outcome.error)
    else:
        ended.set_result(outcome)
