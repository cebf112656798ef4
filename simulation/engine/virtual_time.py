"""An event loop whose clock jumps to the next timer instead of waiting for it.

Simulated engines then run as fast as they can be computed, and the same program always gives the same times. Only for
programs without sockets, processes and threads, which need real time.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Raised when every task waits and there is no timer."""


class _JumpingSelector(selectors.SelectSelector):
    """A selector that advances the clock instead of waiting."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Deadlock("every task waits, and there is no timer to wait for")
            self._advance(max(timeout, 0.0))
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` starts at 0."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_JumpingSelector(self._advance))

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._now_s

    def _advance(self, seconds: float) -> None:
        self._now_s += seconds


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run a program to its end in virtual time, and return its result.

    Raises the exception of the program or of a callback of its loop, and Deadlock if it cannot end.
    """
    failures: list[BaseException] = []

    def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failures.append(context.get("exception") or RuntimeError(context["message"]))

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.get_loop().set_exception_handler(note)
        try:
            result = runner.run(main)
        except Exception as error:
            if failures:
                raise failures[0] from error  # the likely cause of `error`
            raise
    if failures:
        raise failures[0]
    return result
