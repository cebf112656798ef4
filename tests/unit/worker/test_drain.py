"""A drain waits for exactly the worker's requests."""

import asyncio

import pytest

import baton.worker.drain
from baton.worker.drain import Drain, DrainConflict, DrainState


async def test_a_drain_waits_for_the_last_request() -> None:
    drain = Drain()
    await drain.wait_idle()
    assert not drain.has_begun
    with drain.request():
        drain.enter()
        drain.begin()
        waiting = asyncio.ensure_future(drain.wait_idle())
        drain.leave()
        await asyncio.sleep(0)
        assert not waiting.done()
        assert drain.num_requests == 1
    await waiting
    assert drain.has_begun
    assert drain.num_requests == 0


async def test_requests_that_end_in_time_are_not_handed_off() -> None:
    drain, given = Drain(), []
    drain.listen(lambda: given.append("all"))
    drain.enter()
    draining = asyncio.ensure_future(drain.run(60))
    await drain.wait_change(DrainState.SERVING)
    drain.leave()
    assert await draining == 0
    assert given == []


async def test_late_requests_are_handed_off_and_readers_of_their_kv_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(baton.worker.drain, "HAND_OFF_S", 60)  # no longer than until each is pulled
    drain = Drain()
    read = asyncio.Event()

    async def pull() -> None:
        with drain.request():
            await read.wait()

    pulls: list[asyncio.Task[None]] = []

    def hand_off() -> None:
        for request_id in ("pulled", "cancelled"):
            drain.leave()
            drain.handed_off.add(request_id, "session")
        drain.handed_off.add("lost", "other session")
        pulls.append(asyncio.ensure_future(pull()))  # the next worker reads its KV from this one

    drain.listen(hand_off)
    drain.enter()
    drain.enter()
    draining = asyncio.ensure_future(drain.run(0.01))
    async with asyncio.timeout(10):
        while not pulls:
            await asyncio.sleep(0.001)
    drain.handed_off.release("pulled")
    drain.handed_off.release("cancelled")
    read.set()
    await asyncio.wait((draining,), timeout=0.05)
    assert not draining.done()  # one may still be pulled
    drain.handed_off.release_session("other session")
    assert await asyncio.wait_for(draining, 10) == 2


async def test_a_drain_waits_a_bounded_time_for_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baton.worker.drain, "HAND_OFF_S", 0.01)
    drain = Drain()

    def hand_off() -> None:
        drain.leave()
        drain.handed_off.add("of a router that never releases it", "session")

    drain.listen(hand_off)
    drain.enter()
    assert await asyncio.wait_for(drain.run(0), 10) == 1
    await asyncio.wait_for(drain.handed_off.wait_released(), 10)


async def test_a_worker_without_hand_offs_ends_without_delay() -> None:
    drain = Drain()
    drain.enter()
    assert await drain.run(0.01) == 1


async def test_a_later_caller_shares_the_drain_and_may_shorten_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baton.worker.drain, "HAND_OFF_S", 0.2)
    drain, given = Drain(), []

    def hand_off() -> None:
        given.append("all")
        drain.handed_off.add("request", "session")
        drain.leave()

    drain.listen(hand_off)
    drain.enter()
    first = asyncio.ensure_future(drain.run(60))
    await drain.wait_change(DrainState.SERVING)
    second = asyncio.ensure_future(drain.run(0.01))
    async with asyncio.timeout(10):
        while not given:
            await asyncio.sleep(0.001)
    third = asyncio.ensure_future(drain.run(0))  # other workers are about to pull
    await asyncio.sleep(0.01)
    assert not third.done()
    assert await asyncio.gather(first, second, third) == [1, 1, 1]
    assert given == ["all"]


async def test_a_drain_continues_when_its_caller_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baton.worker.drain, "HAND_OFF_S", 0.01)
    drain, given = Drain(), []

    def hand_off() -> None:
        given.append("all")
        drain.leave()

    drain.listen(hand_off)
    drain.enter()
    waiter = asyncio.ensure_future(drain.run(0.05))
    await drain.wait_change(DrainState.SERVING)
    waiter.cancel()
    async with asyncio.timeout(10):
        await drain.wait_idle()
    assert waiter.cancelled()
    assert given == ["all"]


async def test_an_undrained_worker_accepts_requests_and_can_be_drained_again() -> None:
    drain = Drain()
    drain.undo()  # no-op for a worker that serves
    assert await drain.run(60) == 0
    assert drain.state is DrainState.DRAINED
    drain.undo()
    drain.undo()
    assert not drain.has_begun
    with drain.request():
        again = asyncio.ensure_future(drain.run(60))
        assert await drain.wait_change(DrainState.SERVING) is DrainState.DRAINING
    assert await again == 0
    assert drain.state is DrainState.DRAINED


async def test_after_an_undrain_the_drains_deadline_hands_nothing_off() -> None:
    drain, given = Drain(), []
    drain.listen(lambda: given.append("all"))
    drain.enter()
    draining = asyncio.ensure_future(drain.run(0.02))
    await drain.wait_change(DrainState.SERVING)
    drain.undo()
    with pytest.raises(DrainConflict, match="undrained before its drain had ended"):
        await draining
    later = asyncio.ensure_future(drain.run(60))  # has its own deadline
    await asyncio.wait((later,), timeout=0.1)
    assert not later.done()
    drain.leave()
    assert await later == 0
    assert given == []


async def test_undraining_during_the_hand_off_cancels_the_drain() -> None:
    drain, handed_off = Drain(), asyncio.Event()
    drain.listen(handed_off.set)
    drain.enter()
    draining = asyncio.ensure_future(drain.run(0))
    await handed_off.wait()
    drain.handed_off.add("request", "session")
    drain.leave()
    drain.undo()
    await asyncio.wait_for(drain.handed_off.wait_released(), 10)
    with pytest.raises(DrainConflict):
        await draining
    assert drain.state is DrainState.SERVING


async def test_a_worker_that_is_shutting_down_cannot_be_undrained() -> None:
    drain = Drain()
    assert await drain.run(60) == 0
    drain.begin(final=True)
    with pytest.raises(DrainConflict, match="shutting down"):
        drain.undo()
    assert drain.state is DrainState.DRAINED


async def test_a_drained_worker_ends_after_the_reads_that_peers_have_begun() -> None:
    drain = Drain()
    assert await drain.run(0.01) == 0
    with drain.request():  # its cache is a source of KV until it ends
        ending = asyncio.ensure_future(drain.run(60, final=True))
        await asyncio.wait((ending,), timeout=0.2)
        assert not ending.done()
    assert await asyncio.wait_for(ending, 5) == 0


async def test_the_drain_of_a_workers_next_life_waits_for_the_reads_of_the_former_one() -> None:
    former = Drain()
    former.enter()
    former.enter()
    unused = former.succeed()  # the role could not be served
    third = former.succeed().succeed()
    former.leave()
    draining = asyncio.ensure_future(third.run(60, final=True))
    await asyncio.wait((draining,), timeout=0.05)
    assert not draining.done()
    former.leave()
    assert await asyncio.wait_for(draining, 10) == 0
    assert (former.num_requests, unused.num_requests) == (0, 2)


async def test_a_late_read_of_a_former_life_is_awaited_like_the_others() -> None:
    former = Drain()
    following = former.succeed()
    with former.request():  # its call had begun before the change
        draining = asyncio.ensure_future(following.run(60, final=True))
        await asyncio.wait((draining,), timeout=0.05)
        assert not draining.done()
    assert await asyncio.wait_for(draining, 10) == 0
