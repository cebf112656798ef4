"""The stream of states: one computation for all viewers, and none without."""

import asyncio
from contextlib import ExitStack

import pytest

from baton.router.console.feed import ConsoleFeed
from baton.router.errors import Draining
from baton.rpc.status import Unavailable


class States:
    """Computes the states 1, 2, 3..."""

    def __init__(self) -> None:
        self.num = 0
        self.fails = False

    async def __call__(self) -> bytes:
        self.num += 1
        if self.fails:
            raise ValueError("no state")
        return str(self.num).encode()


async def passed(states: States, num: int) -> None:
    """Wait until so many further states were computed."""
    until = states.num + num
    async with asyncio.timeout(10):
        while states.num < until:
            await asyncio.sleep(0.001)


async def test_states_are_computed_once_for_all_viewers_and_only_while_there_is_one() -> None:
    states = States()
    feed = ConsoleFeed(states, interval_s=0.001)
    assert not feed.is_running
    with feed.viewer() as first, feed.viewer() as second:
        taken = await asyncio.gather(first.take(), second.take())
        assert taken[0] == taken[1]
    assert not feed.is_running
    num = states.num
    await asyncio.sleep(0.02)
    assert states.num == num
    with feed.viewer() as viewer:
        assert int(await viewer.take()) > num


async def test_a_viewer_that_does_not_read_misses_states_and_holds_up_nobody() -> None:
    states = States()
    feed = ConsoleFeed(states, interval_s=0.001)
    with feed.viewer() as slow, feed.viewer() as quick:
        await slow.take()
        for _ in range(20):
            await quick.take()
        before = states.num
        assert int(await slow.take()) >= before - 1  # the latest, not the oldest that it missed


async def test_viewers_are_bounded() -> None:
    feed = ConsoleFeed(States(), interval_s=0.001, max_viewers=2)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(feed.viewer())
        with pytest.raises(Unavailable, match="2 browsers"):
            stack.enter_context(feed.viewer())
    with feed.viewer() as viewer:
        assert await viewer.take()


async def test_the_end_reaches_all_viewers_and_no_further_one_is_taken() -> None:
    states = States()
    feed = ConsoleFeed(states, interval_s=0.001)
    with feed.viewer() as first, feed.viewer() as second:
        await asyncio.gather(first.take(), second.take())
        feed.end()
        assert await asyncio.gather(first.take(), second.take()) == [None, None]
        assert not feed.is_running
    with pytest.raises(Draining), feed.viewer():
        pass


async def test_a_state_that_cannot_be_computed_does_not_end_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    states = States()
    states.fails = True
    feed = ConsoleFeed(states, interval_s=0.001)
    with feed.viewer() as viewer:
        await passed(states, 3)
        states.fails = False
        assert await viewer.take()
    assert "could not be computed" in caplog.text
