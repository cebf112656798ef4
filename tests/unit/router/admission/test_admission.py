"""Admission: which requests are admitted, and which wait."""

import asyncio
import heapq
import random

import pytest

from baton.router.errors import NoWorker, Overloaded
from baton.router.request_context import RequestContext
from baton.rpc.status import DeadlineExceeded
from tests.unit.router.rigs.admission_rig import Rig, Workers, overloaded, settle, until


async def test_requests_wait_for_their_turn_and_are_counted() -> None:
    rig = Rig(max_inflight=3)
    tasks = [rig.send("a", 2), rig.send("b", 2), rig.send("c", 1)]
    await settle()
    assert (rig.order, rig.admission.num_inflight, rig.admission.num_waiting) == (["a"], 2, 3)
    assert (rig.metric("router_waiting"), rig.metric("router_capacity")) == (3, 3)
    rig.now_s = 0.3
    rig.end("a")
    await settle()
    assert (rig.order, rig.admission.num_inflight, rig.admission.num_waiting) == (["a", "b", "c"], 3, 0)
    rig.end("b", "c")
    await asyncio.gather(*tasks)
    assert rig.admission.num_inflight == 0
    assert rig.metric("request_queue_time_seconds_count") == 2  # those that waited
    assert rig.metric("request_queue_time_seconds_sum") == pytest.approx(0.6)
    assert rig.refusals() == {}


async def test_urgent_requests_are_first_and_then_the_keys_in_turn() -> None:
    rig = Rig(max_inflight=1)
    tasks = [rig.send("first")]
    tasks += [rig.send(f"flood{place}", key="flood") for place in range(4)]
    tasks += [rig.send("other", key="other"), rig.send("idle", priority=1), rig.send("urgent", priority=-1)]
    await settle()
    for _ in range(8):
        rig.end(rig.order[-1])
        await settle()
    await asyncio.gather(*tasks)
    assert rig.order == ["first", "urgent", "flood0", "other", "flood1", "flood2", "flood3", "idle"]


async def test_the_limit_is_the_workers_capacity_and_a_margin() -> None:
    rig = Rig(max_inflight=1000, workers=Workers(4))
    tasks = [rig.send(str(place)) for place in range(20)]
    await settle()
    assert len(rig.order) == 4 + 8
    rig.workers.become(6)
    await until(lambda: len(rig.order) == 6 + 8)
    rig.workers.become(400)
    await until(lambda: len(rig.order) == 20)
    assert rig.metric("router_capacity") == 500
    rig.end(*rig.order)
    await asyncio.gather(*tasks)


async def test_requests_wait_for_the_first_worker_each_for_its_own_time() -> None:
    rig = Rig(workers=Workers(0), no_worker_timeout_s=60.0, waits_for_worker=True)
    rig.now_s = 1000  # there has been no worker for long
    first = rig.send("first")
    await settle()
    assert (rig.order, rig.admission.num_waiting, rig.metric("router_waiting")) == ([], 1, 1)
    rig.now_s = 1030
    second = rig.send("second")
    await settle()
    rig.now_s = 1061
    with pytest.raises(NoWorker, match="no decode worker is ready"):
        await first
    assert rig.admission.num_waiting == 1
    rig.workers.become(1)
    await until(lambda: rig.order == ["second"])
    rig.end("second")
    await second
    assert rig.refusals() == {"no_worker": 1}


async def test_a_request_right_after_the_last_worker_has_left_waits_for_the_first_one() -> None:
    rig = Rig(max_inflight=100, workers=Workers(4), no_worker_timeout_s=60.0, waits_for_worker=True)
    before = rig.send("before")
    await settle()
    rig.workers.become(0)
    after = rig.send("after")
    await settle()
    assert (rig.order, rig.admission.num_waiting) == (["before"], 1)
    rig.workers.become(1)
    await until(lambda: rig.order == ["before", "after"])
    rig.end("before", "after")
    await asyncio.gather(before, after)


async def test_a_draining_router_holds_no_request_for_the_first_worker() -> None:
    rig = Rig(workers=Workers(0), no_worker_timeout_s=600.0, waits_for_worker=True)
    waiting = rig.send("waiting")
    await settle()
    rig.admission.begin_drain()
    with pytest.raises(NoWorker, match="no decode worker is ready"):
        await waiting
    late = rig.send("late")  # fails behind its admission, like any without a worker
    await settle()
    assert (rig.order, rig.admission.num_waiting) == (["late"], 0)
    rig.end("late")
    await late
    assert rig.refusals() == {"no_worker": 1}


@pytest.mark.parametrize("waits_for_worker", [True, False])
async def test_a_draining_router_serves_the_requests_that_wait_while_there_are_workers(waits_for_worker: bool) -> None:
    rig = Rig(max_inflight=1, workers=Workers(1), no_worker_timeout_s=600.0, waits_for_worker=waits_for_worker)
    tasks = [rig.send("first"), rig.send("second")]
    await settle()
    rig.admission.begin_drain()
    await settle()
    assert (rig.order, rig.admission.num_waiting) == (["first"], 1)
    rig.end("first", "second")
    await asyncio.gather(*tasks)
    assert rig.order == ["first", "second"]


async def test_other_requests_do_not_wait_for_the_first_decode_worker() -> None:
    rig = Rig(workers=Workers(0), no_worker_timeout_s=60.0, waits_for_worker=True)
    waiting = rig.send("completion")
    await settle()
    async with rig.admission.admit(1, RequestContext(), generates=False):  # such as /tokenize
        assert rig.admission.num_waiting == 1
    rig.workers.become(1)
    await until(lambda: rig.order == ["completion"])
    rig.end("completion")
    await waiting


async def test_a_wait_for_the_first_worker_is_not_the_workers_speed() -> None:
    rig = Rig(max_inflight=1, workers=Workers(1), no_worker_timeout_s=600.0, waits_for_worker=True)
    task = rig.send("first")
    await settle()
    rig.now_s = 1.0
    rig.end("first")
    await task
    rig.workers.become(0)
    rig.now_s = 500
    waiting = rig.send("second")
    await settle()
    rig.now_s = 800
    rig.workers.become(1)
    await until(lambda: rig.order == ["first", "second"])
    third = rig.send("third", timeout_s=5)  # the workers end one a second
    await settle()
    assert rig.admission.num_waiting == 1
    rig.end("second", "third")
    await asyncio.gather(waiting, third)


async def test_requests_without_generation_do_not_affect_the_rate() -> None:
    rig = Rig(max_inflight=1, max_queue=1)
    first = rig.send("first")
    await settle()
    rig.now_s = 10
    rig.end("first")
    await first
    for _ in range(50):
        async with rig.admission.admit(1, RequestContext(), generates=False):
            rig.now_s += 0.001
    tasks = [rig.send("second"), rig.send("third")]
    await settle()
    with overloaded("1 wait") as retry_after_s:
        await rig.send("fourth")
    assert retry_after_s[0] >= 10
    rig.end("second", "third")
    await asyncio.gather(*tasks)


async def test_a_request_larger_than_the_workers_gets_in() -> None:
    rig = Rig(max_inflight=1000, max_queue=1000, workers=Workers(4))
    tasks = [rig.send(str(place)) for place in range(12)] + [rig.send("large", 100), rig.send("next")]
    await settle()
    rig.end("0")
    await settle()
    assert rig.order[12:] == ["large"]
    rig.end("large")
    await settle()
    rig.end(*rig.order, "next")
    await asyncio.gather(*tasks)
    assert rig.order[13:] == ["next"]


async def test_a_disconnect_removes_the_request_from_the_queue() -> None:
    rig = Rig(max_inflight=2)
    first = rig.send("first", 1)
    large, small = rig.send("large", 2), rig.send("small", 1)
    await settle()
    assert rig.order == ["first"]  # the small one waits behind the large one
    large.cancel()
    await settle()
    assert (rig.order, rig.admission.num_waiting) == (["first", "small"], 0)
    rig.end("first", "small")
    await asyncio.gather(first, small)
    assert large.cancelled()
    assert rig.admission.num_inflight == 0
    assert rig.refusals() == {}


@pytest.mark.parametrize("is_cancelled_first", [False, True])
async def test_a_client_that_disconnects_at_its_turn_holds_no_room(is_cancelled_first: bool) -> None:
    rig = Rig(max_inflight=1)
    first = rig.admission.admit(1, RequestContext())
    await first.__aenter__()
    second, third = rig.send("second"), rig.send("third")
    await settle()
    if is_cancelled_first:  # in one turn of the event loop
        second.cancel()
        await first.__aexit__(None, None, None)
    else:
        await first.__aexit__(None, None, None)
        second.cancel()
    await settle()
    assert (rig.order, rig.admission.num_inflight, rig.admission.num_waiting) == (["third"], 1, 0)
    rig.end("third")
    await third
    assert second.cancelled()
    assert rig.admission.num_inflight == 0


@pytest.mark.parametrize("seed", range(3))
async def test_the_expected_wait_is_about_the_real_one(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(max_inflight=40, max_queue=1000)
    running: list[tuple[float, str]] = []  # end and name
    num_seen = 0

    async def until_admitted(name: str) -> None:
        """End requests, after two seconds each on average, until this one is admitted."""
        nonlocal num_seen
        while name not in rig.order:
            for each in rig.order[num_seen:]:
                heapq.heappush(running, (rig.now_s + rng.expovariate(0.5), each))
            num_seen = len(rig.order)
            rig.now_s, ended = heapq.heappop(running)
            rig.end(ended)
            await settle()

    tasks = [rig.send(str(place)) for place in range(500)]
    await settle()
    for place in (100, 200, 300):  # when there were as many ends, at 20 a second
        await until_admitted(str(place))
        with overloaded("would wait") as seen:
            await rig.send("hurried", timeout_s=1e-6)
        last = f"last{place}"
        tasks.append(rig.send(last))
        came_s = rig.now_s
        await settle()
        if place == 300:
            await until_admitted(last)
            assert seen[0] == pytest.approx(rig.now_s - came_s, rel=0.3)
        else:
            assert seen[0] == pytest.approx((500 - place) / 20, rel=0.35)
    while not all(task.done() for task in tasks):
        rig.end(*rig.order)
        await settle()
    assert rig.refusals() == {"deadline": 3}


async def test_no_request_waits_longer_than_the_limit() -> None:
    rig = Rig(max_inflight=1, max_wait_s=0.05)
    first = rig.send("first")
    await settle()
    with overloaded(r"has waited for the limit of 0\.05 s"):  # the rate is unknown
        await rig.send("second")
    assert rig.admission.num_waiting == 0
    rig.end("first")
    await first
    assert rig.refusals() == {"wait": 1}


async def test_the_wait_at_the_workers_is_limited_too() -> None:
    rig = Rig(max_inflight=100, workers=Workers(4), max_wait_s=2.0)
    tasks = [rig.send(str(place)) for place in range(20)]
    await settle()
    assert len(rig.order) == 4 + 8  # nothing is known yet, and the margin is as wide as it may be
    for place in range(9):  # one ends a second
        rig.now_s += 1.0
        rig.end(str(place))
        await settle()
    assert rig.admission.num_inflight in (4 + 1, 4 + 2, 4 + 3)  # in two seconds about two more places are free
    while not all(task.done() for task in tasks):
        rig.end(*rig.order)
        await settle()


async def test_a_request_that_would_wait_too_long_is_rejected_at_once() -> None:
    rig = Rig(max_inflight=2, max_wait_s=5.0)
    tasks = [rig.send(str(place)) for place in range(8)]
    await settle()
    for place in range(4):  # one ends a second
        rig.now_s += 1.0
        rig.end(str(place))
        await settle()
    for place in range(20):
        task = rig.send(f"more{place}")
        await settle()
        if task.done():
            break
        tasks.append(task)
    with overloaded(r"would wait about \d\.\d s in the queue, over the limit of 5 s"):
        await task
    assert 3 <= rig.admission.num_waiting <= 8  # at about one a second
    assert rig.refusals() == {"wait": 1}
    while not all(task.done() for task in tasks):
        rig.end(*rig.order)
        await settle()


@pytest.mark.parametrize("seed", range(4))
async def test_random_events_lose_no_room_and_no_request(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(max_inflight=30, max_queue=60, workers=Workers(8))
    tasks: dict[str, asyncio.Task[None]] = {}
    for place in range(1500):
        rig.now_s += rng.random() / 10
        action = rng.random()
        if action < 0.5:
            timeout_s = rng.choice((None, None, None, 0.0005, 10.0))
            key, priority = rng.choice("abc"), rng.choice((-1, 0, 0, 2))
            num_completions = rng.choice((1, 1, 2, 12))
            tasks[str(place)] = rig.send(str(place), num_completions, key=key, priority=priority, timeout_s=timeout_s)
        elif action < 0.75 and rig.order:
            rig.end(rng.choice(rig.order))
        elif action < 0.9 and tasks:
            rng.choice(list(tasks.values())).cancel()
        elif action < 0.92:
            rig.workers.become(rng.choice((0, 2, 8, 40, None)))
        if rng.random() < 0.5:
            await asyncio.sleep(0)
        assert 0 <= rig.admission.num_inflight <= 30
        assert 0 <= rig.admission.num_waiting <= 60
    rig.workers.become(8)
    async with asyncio.timeout(20):
        while not all(task.done() for task in tasks.values()):
            rig.end(*tasks)
            await asyncio.sleep(0.001)
    outcomes = await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert {type(each) for each in outcomes if each is not None} <= {
        asyncio.CancelledError,
        DeadlineExceeded,
        Overloaded,
    }
    assert (rig.admission.num_inflight, rig.admission.num_waiting) == (0, 0)
    assert await rig.admission.wait_idle(1)
