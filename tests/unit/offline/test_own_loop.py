"""Calls on a loop of their own: from a running loop, errors, and an interrupt, which cancels the work first."""

import asyncio
import signal
import threading

import pytest

from baton.offline.own_loop import run_on_own_loop


async def double(number: int) -> int:
    """Return twice a number."""
    await asyncio.sleep(0)
    return 2 * number


async def test_a_call_works_where_a_loop_runs() -> None:
    assert run_on_own_loop(lambda: double(21)) == 42


def test_an_error_of_the_work_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        run_on_own_loop(fail)


def test_an_interrupt_ends_the_work_first() -> None:
    ended = threading.Event()

    async def wait() -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)  # as Ctrl-C does
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        run_on_own_loop(wait)
    assert ended.is_set()
