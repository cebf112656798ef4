"""Rejected requests, and waits that end without admission."""

import asyncio

import pytest

from baton.router.errors import Draining, NoWorker
from baton.rpc.status import DeadlineExceeded
from tests.unit.router.rigs.admission_rig import Rig, Workers, overloaded, settle, until


async def test_a_full_queue_responds_with_retry_after() -> None:
    rig = Rig(max_inflight=2, max_queue=4)
    running = [rig.send(f"r{place}") for place in range(2)]
    waiting = [rig.send(f"w{place}") for place in range(4)]
    await settle()
    with overloaded("2 completions are in progress .limit: 2. and 4 wait .limit: 4.") as seen:
        await rig.send("too many")
    assert seen == [1]  # nothing has ended yet
    rig.now_s = 10.0
    rig.end("r0")
    await settle()
    with overloaded("try again in 31 s") as seen:  # one completion in 10 s, and two at once: 0.16 a second, for 3 + 2
        await rig.send("too many", 2)
    assert seen == [31]
    assert rig.refusals() == {"queue_full": 2}
    for _ in range(5):
        rig.end(*rig.order)
        await settle()
    await asyncio.gather(*running, *waiting)


async def test_without_a_queue_requests_are_rejected_at_once() -> None:
    rig = Rig(max_inflight=2, max_queue=0)
    first = rig.send("first", 2)
    await settle()
    with overloaded("try again in 1 s"):
        await rig.send("second")
    assert rig.order == ["first"]
    rig.end("first")
    await first


async def test_a_flood_is_displaced_by_another_key() -> None:
    rig = Rig(max_inflight=1, max_queue=3)
    running = rig.send("running")
    flood = [rig.send(f"flood{place}", key="flood") for place in range(3)]
    await settle()
    other = rig.send("other", key="other")
    with overloaded("displaced this one"):
        await flood[2]
    with overloaded("wait"):
        await rig.send("flood3", key="flood")
    urgent = rig.send("urgent", key="flood", priority=-1)
    with overloaded("displaced this one"):
        await flood[1]
    for _ in range(4):
        rig.end(*rig.order)
        await settle()
    await asyncio.gather(running, flood[0], other, urgent)
    assert rig.order == ["running", "urgent", "flood0", "other"]
    assert rig.refusals() == {"displaced": 2, "queue_full": 1}


async def test_a_request_that_would_miss_its_deadline_is_rejected_at_once() -> None:
    rig = Rig(max_inflight=1)
    tasks = [rig.send(str(place)) for place in range(20)]
    for place in range(10):  # one completion takes 2 s, and ten are to come; an end just counted makes it a little less
        await settle()
        rig.now_s += 2.0
        rig.end(str(place))
    await settle()
    assert rig.admission.num_waiting == 9
    with overloaded("would wait about 18.3 s in the queue, but its deadline is in 5.0 s") as seen:
        await rig.send("late", timeout_s=5.0)
    assert seen == [14]
    assert rig.refusals() == {"deadline": 1}
    in_time = [rig.send("patient", timeout_s=21.0), rig.send("urgent", timeout_s=5.0, priority=-1)]
    await settle()
    assert rig.admission.num_waiting == 11
    for _ in range(12):
        rig.end(*rig.order)
        await settle()
    await asyncio.gather(*tasks, *in_time)


async def test_the_deadline_ends_the_wait() -> None:
    rig = Rig(max_inflight=1)
    running = rig.send("running", timeout_s=1000)
    waiting = [rig.send("first", timeout_s=0.01), rig.send("second", timeout_s=0.02)]
    for each in waiting:
        with pytest.raises(DeadlineExceeded, match="waited in the queue"):
            await asyncio.wait_for(each, 10)
    rig.now_s = 5.0
    with pytest.raises(DeadlineExceeded):
        await rig.send("over", timeout_s=-1.0)
    assert rig.refusals() == {"expired": 3}
    assert (rig.admission.num_inflight, rig.admission.num_waiting) == (1, 0)
    rig.end("running")
    await running


async def test_without_workers_no_new_request_waits() -> None:
    rig = Rig(max_inflight=100, workers=Workers(0))
    tasks = [rig.send(str(place)) for place in range(50)]
    await settle()
    assert len(rig.order) == 50  # the pipeline tells them
    rig.end(*rig.order)
    await asyncio.gather(*tasks)


async def test_waiting_requests_survive_a_pause_without_workers() -> None:
    rig = Rig(max_inflight=100, workers=Workers(1), no_worker_timeout_s=30.0)
    tasks = [rig.send(str(place)) for place in range(12)]
    await settle()
    assert len(rig.order) == 9
    rig.workers.become(0)
    await until(lambda: not rig.workers.changed.is_set())
    await settle()
    rig.end(*rig.order)
    await settle()
    assert (len(rig.order), rig.admission.num_waiting) == (9, 3)
    rig.now_s += 29.0
    rig.workers.become(1)
    await until(lambda: len(rig.order) == 12)
    rig.end(*rig.order)
    await asyncio.gather(*tasks)
    assert rig.refusals() == {}


async def test_waiting_requests_fail_if_no_worker_comes_back() -> None:
    rig = Rig(max_inflight=100, workers=Workers(1), no_worker_timeout_s=30.0)
    tasks = [rig.send(str(place)) for place in range(10)]
    await settle()
    rig.workers.become(0)
    await until(lambda: not rig.workers.changed.is_set())
    await settle()
    rig.now_s += 31.0
    rig.workers.changed.set()
    with pytest.raises(NoWorker):
        await asyncio.wait_for(tasks[9], 10)
    assert rig.refusals() == {"no_worker": 1}
    rig.end(*rig.order)
    await asyncio.gather(*tasks[:9])


async def test_without_decode_workers_the_workers_for_embeddings_serve_the_queue() -> None:
    rig = Rig(max_inflight=100, workers=Workers(0, 2), no_worker_timeout_s=30.0)
    tasks = [rig.send(str(place), generates=False) for place in range(12)]
    await settle()
    assert (len(rig.order), rig.metric("router_capacity")) == (10, 10)
    rig.now_s += 31.0
    generating = rig.send("generating")
    await settle()
    assert rig.order[10:] == ["generating"]  # the pipeline refuses it
    rig.end("generating", "0")
    await generating
    await until(lambda: rig.order[11:] == ["10"])  # the oldest one that waits
    later = rig.send("later", generates=False)
    rig.workers.become(0, 0)
    await until(lambda: not rig.workers.changed.is_set())
    await settle()
    assert rig.admission.num_waiting == 2
    rig.now_s += 31.0
    rig.workers.changed.set()
    for task in (tasks[11], later):
        with pytest.raises(NoWorker, match="no worker is ready"):
            await asyncio.wait_for(task, 10)
    rig.end(*rig.order)
    await asyncio.gather(*tasks[:11])


async def test_requests_that_wait_for_a_decode_worker_keep_no_embeddings_waiting_for_long() -> None:
    rig = Rig(max_inflight=100, workers=Workers(1, 1), no_worker_timeout_s=30.0)
    tasks = [rig.send(str(place)) for place in range(10)]
    embeddings = [rig.send("queued", generates=False)]
    await settle()
    rig.workers.become(0, 1)
    await until(lambda: not rig.workers.changed.is_set())
    rig.end(*rig.order)
    await settle()
    embeddings.append(rig.send("overtaking", generates=False))
    await settle()
    assert rig.order[9:] == ["overtaking"]
    rig.now_s += 31.0
    rig.workers.changed.set()
    await until(lambda: rig.order[10:] == ["queued"])
    with pytest.raises(NoWorker, match="no decode worker"):
        await tasks[9]
    rig.end(*rig.order)
    await asyncio.gather(*tasks[:9], *embeddings)


async def test_draining_ends_once_waiting_requests_have_been_served() -> None:
    rig = Rig(max_inflight=1)
    tasks = [rig.send("first"), rig.send("second")]
    await settle()
    rig.admission.draining = True
    with pytest.raises(Draining):
        await rig.send("third")
    idle = asyncio.create_task(rig.admission.wait_idle(10))
    rig.end("first")
    await settle()
    assert (rig.order, idle.done()) == (["first", "second"], False)
    rig.end("second")
    assert await idle
    await asyncio.gather(*tasks)
    assert rig.refusals() == {"draining": 1}


async def test_the_end_of_the_drain_fails_waiting_requests() -> None:
    rig = Rig(max_inflight=1)
    first, second = rig.send("first"), rig.send("second")
    await settle()
    assert not await rig.admission.wait_idle(0.001)
    rig.workers.ended = Draining("the time is over")
    rig.workers.changed.set()
    with pytest.raises(Draining, match="time is over"):
        await asyncio.wait_for(second, 10)
    rig.end("first")
    await first
    assert await rig.admission.wait_idle(1)
