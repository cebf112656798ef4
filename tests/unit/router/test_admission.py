"""Who is taken on, who waits and who is refused."""

import asyncio
import heapq
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry

from router.admission import Admission, AdmissionLimits
from router.admission_metrics import AdmissionMetrics
from router.errors import Draining, NoWorker, Overloaded
from router.request_context import RequestContext
from rpc.status import DeadlineExceeded, Unavailable


class Workers:
    """Workers that run so many choices at once."""

    def __init__(self, num_seqs: int | None = None) -> None:
        self.num = num_seqs
        self.changed = asyncio.Event()
        self.ended: Unavailable | None = None

    def num_seqs(self) -> int | None:
        return self.num

    async def wait_change(self, timeout_s: float) -> None:
        if self.ended is not None:
            raise self.ended
        try:
            await asyncio.wait_for(self.changed.wait(), timeout_s)
        except TimeoutError:
            return
        self.changed.clear()

    def become(self, num_seqs: int | None) -> None:
        self.num = num_seqs
        self.changed.set()


class Rig:
    """An admission with a clock of its own, and the requests that were sent to it."""

    def __init__(
        self, max_inflight: int = 2, max_queue: int = 100, workers: Workers | None = None, **limits: float
    ) -> None:
        self.registry = CollectorRegistry()
        self.workers = workers or Workers()
        self.now_s = 0.0
        self.admission = Admission(
            AdmissionLimits(max_inflight=max_inflight, max_queue=max_queue, **limits),
            self.workers,
            AdmissionMetrics(self.registry, "model"),
            lambda: self.now_s,
        )
        self.order: list[str] = []  # names of the requests, as they were admitted
        self._ends: dict[str, asyncio.Event] = {}

    def send(
        self,
        name: str,
        num_choices: int = 1,
        *,
        key: str = "",
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> asyncio.Task[None]:
        """A request that runs until it is ended."""
        context = RequestContext(fairness_key=key, priority=priority, timeout_s=timeout_s, arrived_s=self.now_s)
        self._ends[name] = asyncio.Event()

        async def request() -> None:
            async with self.admission.admit(num_choices, context):
                self.order.append(name)
                await self._ends[name].wait()

        return asyncio.create_task(request())

    def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()

    def metric(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"baton:{name}", {"model_name": "model", **labels})
        assert value is not None
        return value

    def refusals(self) -> dict[str, float]:
        """How many there were, by reason."""
        samples = (sample for family in self.registry.collect() for sample in family.samples)
        refused = (each for each in samples if each.name == "baton:router_refusals_total" and each.value)
        return {each.labels["reason"]: each.value for each in refused}


async def settle() -> None:
    """Lets all tasks go as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Returns once the condition holds; TimeoutError if it never does."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@contextmanager
def overloaded(text: str) -> Iterator[list[int]]:
    """Expects Overloaded with this text; gives its Retry-After."""
    seen: list[int] = []
    with pytest.raises(Overloaded, match=text) as caught:
        yield seen
    seen.append(caught.value.retry_after_s)


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


async def test_the_urgent_and_then_the_keys_in_turn() -> None:
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


async def test_what_the_workers_run_and_a_margin_is_the_limit() -> None:
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


async def test_what_no_worker_does_says_nothing_of_their_speed() -> None:
    rig = Rig(max_inflight=1, max_queue=1)
    first = rig.send("first")
    await settle()
    rig.now_s = 10
    rig.end("first")
    await first
    for _ in range(50):
        async with rig.admission.admit(1, RequestContext(arrived_s=rig.now_s), generates=False):
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


async def test_a_client_that_goes_away_leaves_the_queue() -> None:
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
async def test_a_client_that_goes_away_as_its_turn_comes_takes_no_room(is_cancelled_first: bool) -> None:
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


async def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    rig = Rig(max_inflight=2, max_queue=4)
    running = [rig.send(f"r{place}") for place in range(2)]
    waiting = [rig.send(f"w{place}") for place in range(4)]
    await settle()
    with overloaded("2 choices are being generated .the limit is 2. and 4 wait .the limit is 4.") as seen:
        await rig.send("too many")
    assert seen == [1]  # nothing has ended yet
    rig.now_s = 10.0
    rig.end("r0")
    await settle()
    with overloaded("try again in 31 s") as seen:  # one choice in 10 s, and two at once: 0.16 a second, for 3 + 2
        await rig.send("too many", 2)
    assert seen == [31]
    assert rig.refusals() == {"queue_full": 2}
    for _ in range(5):
        rig.end(*rig.order)
        await settle()
    await asyncio.gather(*running, *waiting)


async def test_without_a_queue_the_refusal_is_at_once() -> None:
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
    with overloaded("gave way"):
        await flood[2]
    with overloaded("wait"):
        await rig.send("flood3", key="flood")
    urgent = rig.send("urgent", key="flood", priority=-1)
    with overloaded("gave way"):
        await flood[1]
    for _ in range(4):
        rig.end(*rig.order)
        await settle()
    await asyncio.gather(running, flood[0], other, urgent)
    assert rig.order == ["running", "urgent", "flood0", "other"]
    assert rig.refusals() == {"displaced": 2, "queue_full": 1}


async def test_a_request_that_cannot_be_in_time_is_refused_at_once() -> None:
    rig = Rig(max_inflight=1)
    tasks = [rig.send(str(place)) for place in range(20)]
    for place in range(10):  # one choice takes 2 s, and ten are to come; an end just counted makes it a little less
        await settle()
        rig.now_s += 2.0
        rig.end(str(place))
    await settle()
    assert rig.admission.num_waiting == 9
    with overloaded("would wait about 18.3 s for its turn, but has only 5.0 s left") as seen:
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


async def test_time_that_is_over_ends_the_waiting() -> None:
    rig = Rig(max_inflight=1, default_timeout_s=0.02)
    running = rig.send("running", timeout_s=1000)
    waiting = [rig.send("stated", timeout_s=0.01), rig.send("default")]
    for each in waiting:
        with pytest.raises(DeadlineExceeded, match="waited for its turn"):
            await asyncio.wait_for(each, 10)
    rig.now_s = 5.0
    with pytest.raises(DeadlineExceeded):
        await rig.send("over", timeout_s=-1.0)
    assert rig.refusals() == {"expired": 3}
    assert (rig.admission.num_inflight, rig.admission.num_waiting) == (1, 0)
    rig.end("running")
    await running


async def test_without_workers_nobody_new_waits() -> None:
    rig = Rig(max_inflight=100, workers=Workers(0))
    tasks = [rig.send(str(place)) for place in range(50)]
    await settle()
    assert len(rig.order) == 50  # the pipeline tells them
    rig.end(*rig.order)
    await asyncio.gather(*tasks)


async def test_those_who_wait_survive_a_pause_without_workers() -> None:
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


async def test_those_who_wait_are_told_when_no_worker_comes_back() -> None:
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


async def test_draining_ends_when_those_who_wait_have_been_served() -> None:
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


async def test_the_end_of_the_drain_ends_the_waiting() -> None:
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


@pytest.mark.parametrize("seed", range(3))
async def test_the_expected_wait_is_about_the_real_one(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(max_inflight=40, max_queue=1000)
    running: list[tuple[float, str]] = []  # end and name
    num_seen = 0

    async def until_admitted(name: str) -> None:
        """Lets requests end, after two seconds each in the mean, until this one is admitted."""
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
            num_choices = rng.choice((1, 1, 2, 12))
            tasks[str(place)] = rig.send(str(place), num_choices, key=key, priority=priority, timeout_s=timeout_s)
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
