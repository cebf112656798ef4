"""Requests of batches take what interactive ones leave, and give it back."""

import asyncio
import random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from baton.router.batches import slots as slots_module
from baton.router.batches.metrics import BatchMetrics
from baton.router.batches.slots import Slots
from baton.router.request_context import INT32_MAX, RequestContext
from tests.unit.router.rigs.admission_rig import Rig, Workers, settle, until

NUM_SEQS = 16
RESERVE = 2  # an eighth of the sequences
SHARE = 4  # a quarter of them


class BatchRig:
    """An admission, and requests of batches for it."""

    def __init__(self, max_inflight: int = 100, num_seqs: int = NUM_SEQS, waits_for_worker: bool = False) -> None:
        self.rig = Rig(max_inflight=1000, workers=Workers(num_seqs), waits_for_worker=waits_for_worker)
        self.registry = CollectorRegistry()
        self.slots = Slots(self.rig.admission, max_inflight, BatchMetrics(self.registry, "model"), lambda: True)
        self.started: list[asyncio.Task[None]] = []
        self.may_end = asyncio.Event()
        self.num_short = 0  # requests of `drive_short` that have ended
        self._rng = random.Random(0)

    async def work(self) -> None:
        context = RequestContext(priority=INT32_MAX, is_deferred=True)
        async with self.rig.admission.admit(1, context):
            await self.may_end.wait()

    async def drive(self, count: int) -> None:
        for _ in range(count):
            self.started.append(await self.slots.start(1, self.work))

    async def drive_short(self) -> None:
        """Start requests that end soon, so that some always run."""

        async def work() -> None:
            await asyncio.sleep(self._rng.uniform(0.05, 0.2))
            self.num_short += 1

        while True:
            await self.slots.start(1, work)

    @property
    def num_running(self) -> int:
        return sum(not task.done() for task in self.started)


async def test_a_share_of_the_sequences_stays_free() -> None:
    batch = BatchRig()
    driving = asyncio.create_task(batch.drive(50))
    await until(lambda: batch.num_running == NUM_SEQS - RESERVE)
    await asyncio.sleep(0.1)
    assert batch.num_running == batch.rig.admission.num_deferred == NUM_SEQS - RESERVE
    driving.cancel()
    batch.may_end.set()
    await asyncio.gather(driving, *batch.started, return_exceptions=True)
    assert batch.rig.admission.num_deferred == 0


async def test_batches_take_a_share_while_interactive_requests_are_in_flight() -> None:
    batch = BatchRig()
    batch.rig.send("0")
    await settle()
    driving = asyncio.create_task(batch.drive(50))
    await until(lambda: batch.num_running == SHARE)
    await asyncio.sleep(0.1)
    assert batch.num_running == batch.rig.admission.num_deferred == SHARE
    batch.rig.end("0")
    await asyncio.sleep(0.1)
    assert batch.num_running == SHARE  # the next one may arrive at once
    await until(lambda: batch.num_running == NUM_SEQS - RESERVE)
    driving.cancel()
    batch.may_end.set()
    await asyncio.gather(driving, *batch.started, return_exceptions=True)


async def test_a_request_larger_than_the_share_starts_alone() -> None:
    batch = BatchRig()
    batch.rig.send("0")
    await settle()
    large = await asyncio.wait_for(batch.slots.start(SHARE + 2, batch.work), 5)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(batch.slots.start(1, batch.work), 0.1)
    batch.may_end.set()
    await large


async def test_interactive_requests_never_wait_while_a_batch_runs() -> None:
    batch = BatchRig()
    driving = asyncio.create_task(batch.drive(50))
    await until(lambda: batch.num_running == NUM_SEQS - RESERVE)
    for number in range(NUM_SEQS):
        batch.rig.send(f"{number}")
        await settle()
        assert len(batch.rig.order) == number + 1
        assert batch.rig.admission.num_inflight <= NUM_SEQS
    assert batch.num_running == 0
    assert (
        batch.registry.get_sample_value(
            "baton:batch_requests_repeated_total", {"model_name": "model", "reason": "displaced"}
        )
        == NUM_SEQS - RESERVE
    )
    batch.rig.end(*(f"{number}" for number in range(NUM_SEQS)))
    await until(lambda: batch.num_running == NUM_SEQS - RESERVE)
    driving.cancel()
    batch.may_end.set()
    await asyncio.gather(driving, *batch.started, return_exceptions=True)


async def test_the_last_requests_give_their_places_back() -> None:
    batch = BatchRig()
    driving = asyncio.create_task(batch.drive(50))
    await until(lambda: batch.num_running == NUM_SEQS - RESERVE)
    for number in range(RESERVE + 3):
        batch.rig.send(f"{number}")
    await settle()
    assert [task.cancelled() for task in batch.started] == [False] * (NUM_SEQS - RESERVE - 3) + [True] * 3
    driving.cancel()
    batch.may_end.set()
    await asyncio.gather(driving, *batch.started, return_exceptions=True)


async def test_the_number_in_flight_is_bounded() -> None:
    batch = BatchRig(max_inflight=3)
    driving = asyncio.create_task(batch.drive(50))
    await until(lambda: batch.num_running == 3)
    await asyncio.sleep(0.1)
    assert batch.num_running == 3
    driving.cancel()
    batch.may_end.set()
    await asyncio.gather(driving, *batch.started, return_exceptions=True)
    alone = BatchRig(num_seqs=1)  # a request that is larger than the limits runs alone
    await asyncio.wait_for(alone.drive(1), 5)
    alone.may_end.set()
    await asyncio.gather(*alone.started)


async def test_a_request_that_needs_all_sequences_neither_blocks_the_others_nor_starves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots_module, "TURN_S", 0.3)
    batch = BatchRig()
    batch.rig.send("0")
    await settle()
    large = asyncio.create_task(batch.slots.start(NUM_SEQS + 4, batch.work))
    await settle()
    driving = asyncio.create_task(batch.drive_short())
    await until(lambda: batch.num_short > 50)
    assert not large.done()
    batch.rig.end("0")
    await asyncio.wait_for(large, 5)  # although others would always like to start
    batch.may_end.set()
    driving.cancel()
    await asyncio.gather(driving, await large, return_exceptions=True)
    await until(lambda: not batch.slots.has_any)


@pytest.mark.slow
async def test_several_requests_without_room_delay_the_others_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "TURN_S", 0.3)
    batches = {num_large: BatchRig() for num_large in (1, 3)}
    tasks: list[asyncio.Task[Any]] = []
    for num_large, batch in batches.items():
        batch.rig.send("0")
        await settle()
        tasks.extend(asyncio.create_task(batch.slots.start(NUM_SEQS + 4, batch.work)) for _ in range(num_large))
        await settle()
        tasks.append(asyncio.create_task(batch.drive_short()))
    await until(lambda: batches[1].num_short > 50)
    assert batches[3].num_short > 25
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: not any(batch.slots.has_any for batch in batches.values()))


@pytest.mark.parametrize("num_turns", range(6))
async def test_a_cancellation_just_after_a_request_has_ended_is_not_lost(num_turns: int) -> None:
    batch = BatchRig(max_inflight=1)
    driving = asyncio.create_task(batch.drive(50))
    await until(lambda: batch.num_running == 1)
    await asyncio.sleep(0.03)  # the next one waits for room
    batch.may_end.set()
    for _ in range(num_turns):
        await asyncio.sleep(0)
    driving.cancel()
    await asyncio.wait((driving,), timeout=5)
    assert driving.cancelled()
    await asyncio.gather(*batch.started, return_exceptions=True)


async def test_one_request_waits_for_the_first_worker_so_that_one_starts() -> None:
    batch = BatchRig(num_seqs=0, waits_for_worker=True)
    driving = asyncio.create_task(batch.drive(3))
    await until(lambda: batch.rig.admission.num_waiting == 1)
    assert batch.num_running == 1
    batch.rig.workers.become(NUM_SEQS)
    await until(lambda: batch.num_running == 3)
    batch.may_end.set()
    await driving
    await asyncio.gather(*batch.started)


async def test_no_request_starts_without_a_worker() -> None:
    batch = BatchRig(num_seqs=0)
    driving = asyncio.create_task(batch.drive(1))
    await settle()
    assert batch.num_running == 0
    batch.rig.workers.become(NUM_SEQS)
    batch.rig.now_s = 1.0
    await until(lambda: batch.num_running == 1)
    batch.may_end.set()
    await driving
    await asyncio.gather(*batch.started)
