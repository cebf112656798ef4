"""The event loop with virtual time."""

import asyncio
import time

import pytest

from baton.simulation.engine.virtual_time import Deadlock, run_in_virtual_time


def test_sleeps_take_no_real_time_and_keep_their_order() -> None:
    woken: list[tuple[int, float]] = []

    async def sleeper(delay_s: int) -> None:
        await asyncio.sleep(delay_s)
        woken.append((delay_s, asyncio.get_running_loop().time()))

    async def main() -> None:
        await asyncio.gather(*(sleeper(delay_s) for delay_s in (3600, 5, 86400)))

    begin_s = time.monotonic()
    run_in_virtual_time(main())
    assert time.monotonic() - begin_s < 5
    assert woken == [(5, 5.0), (3600, 3600.0), (86400, 86400.0)]


def test_a_program_that_cannot_end_raises() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_in_virtual_time(main())


def test_a_callback_that_fails_is_not_lost() -> None:
    def fail() -> None:
        raise ZeroDivisionError("a timer's")

    async def main() -> None:
        asyncio.get_running_loop().call_later(1, fail)
        await asyncio.sleep(2)

    with pytest.raises(ZeroDivisionError, match="a timer's"):
        run_in_virtual_time(main())
