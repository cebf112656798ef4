"""The state that the console shows: its content, its size, its cost."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from baton.membership.registry.plan_report import PlanReport, PoolPlan
from baton.protos.worker_pb2 import ExpertShare, KVTier, WorkerDescription, WorkerLoad
from baton.router.adapters.adapter import Adapter
from baton.router.config import RouterConfig
from baton.router.console.adapter_rows import MAX_ADAPTERS, AdapterRow, adapter_rows
from baton.router.console.api import StateReader
from baton.router.console.snapshot import MAX_STAGE_REQUESTS, MAX_WORKERS
from baton.router.console.worker_rows import MAX_EXPERTS, RateMeter, WorkerRow, pool_rows, worker_row
from baton.router.errors import NoWorker
from baton.router.index.prefix_index import PrefixIndex
from baton.router.metrics.live import LiveCompletion
from baton.router.policy.cluster import Plan, WorkerRole
from baton.router.service import RouterService, make_service
from baton.router.tracing.request_trace import RequestTrace
from baton.router.tracing.timelines import MAX_RECENT
from baton.router.workers.connection import ROLES, WorkerConnection
from baton.router.workers.connection_state import ConnectionState
from baton.router.workers.stranger import AttemptSlots
from baton.rpc.tls import Plaintext
from baton.rpc.tracing.context import TraceContext
from tests.unit.router.rigs.cluster_builder import prefill, worker
from tests.unit.router.rigs.running_router import MODEL

MAX_BYTES = 192 << 10  # of a message
ROLE_NUMBERS = {role: number for number, role in ROLES.items()}


def connection(name: str, role: WorkerRole = WorkerRole.DECODE, running: int = 0) -> WorkerConnection:
    """Return the connection to a worker that is ready."""
    made = WorkerConnection(
        f"{name}:7000", "router", 50, PrefixIndex(), lambda *_: None, lambda: None, Plaintext(), AttemptSlots()
    )
    made.description = made.last_description = WorkerDescription(
        worker_id=name, incarnation=f"{name}/1", role=ROLE_NUMBERS[role], block_size=16, max_model_len=4096
    )
    made.state = ConnectionState.READY
    load = WorkerLoad(num_running=running, num_waiting=1, num_blocks=100, num_free_blocks=75)
    load.tiers.append(KVTier(name="host", num_bytes=10, capacity_bytes=40))
    made.load.report(load)
    return made


def row(each: WorkerConnection) -> WorkerRow:
    return worker_row("m", each, RateMeter(), 0.0)


def test_pools_sum_their_connected_workers() -> None:
    lost = connection("decode-2", running=50)
    lost.state, lost.description, lost.last_error = ConnectionState.CONNECTING, None, "gone " * 100
    draining = connection("decode-1", running=3)
    draining.state = ConnectionState.DRAINING
    never = connection("x")
    never.state, never.description, never.last_description = ConnectionState.CONNECTING, None, None
    workers = [lost, draining, never, connection("decode-0", running=2), connection("prefill-0", WorkerRole.PREFILL)]
    rows = [row(each) for each in workers]
    assert [each.state for each in rows] == ["lost", "draining", "connecting", "ready", "ready"]
    assert len(rows[0].error) == 160
    assert rows[3].kv_used == 0.25
    first, second = pool_rows(rows)
    assert (first.role, second.role) == ("prefill", "decode")
    assert (second.workers, second.ready, second.draining, second.running, second.waiting) == (3, 1, 1, 5, 2)
    assert (second.kv_used, second.tiers[0].num_bytes, second.tiers[0].capacity_bytes) == (0.25, 20, 80)


def test_a_rank_shows_its_experts() -> None:
    ranked = connection("decode-0")
    load = WorkerLoad()
    load.CopyFrom(ranked.load.reported)
    share = ExpertShare(rank=1, num_ranks=2, epoch=3, layer=5, experts=range(100), imbalance=1.23456, num_rows=7)
    share.group = "decode-group-0"
    load.experts.CopyFrom(share)
    ranked.load.report(load)
    experts = row(ranked).experts
    assert experts is not None
    assert (experts.rank, experts.ranks, experts.layer, experts.imbalance, experts.rows) == (1, 2, 5, 1.235, 7)
    assert experts.group == "decode-group-0"
    assert (experts.experts, experts.num_experts) == (tuple(range(64)), 100)
    assert row(connection("decode-1")).experts is None


def test_adapters_in_the_most_slots_come_first() -> None:
    adapters = [Adapter(f"adapter-{number:02d}", "/a", "d") for number in range(60)]
    workers = [connection("decode-0"), connection("decode-1")]
    for each in workers:
        each.load.list_adapters({"adapter-59": "d", "adapter-00": "d"})
    workers[0].load.report(WorkerLoad(resident_adapters=["adapter-59"]))
    gone = connection("decode-2")
    gone.load.list_adapters({"adapter-00": "d"})
    gone.description = None
    rows = adapter_rows(adapters, [*workers, gone])
    assert len(rows) == 50
    assert rows[:3] == (
        AdapterRow("adapter-59", loaded=2, resident=1),
        AdapterRow("adapter-00", loaded=2, resident=0),
        AdapterRow("adapter-01", loaded=0, resident=0),
    )


def test_workers_that_need_attention_come_first_then_the_most_loaded() -> None:
    drained = connection("drained")
    drained.state = ConnectionState.DRAINED
    rows = sorted(
        (row(each) for each in (connection("a", running=9), connection("b"), drained)), key=lambda it: it.load
    )
    assert [each.id for each in reversed(rows)] == ["drained", "a", "b"]


def test_token_rates_are_smoothed_and_forgotten_with_their_worker() -> None:
    meter = RateMeter()
    rates = []
    for second in range(20):
        load = WorkerLoad(num_generated_tokens=100 * second, num_prefilled_tokens=7)
        rates.append(meter.read("w/1", load, float(second)))
        meter.end_round()
    assert (rates[0].generated, rates[0].prefilled) == (0.0, 0.0)
    assert 0 < rates[1].generated < rates[3].generated < 100
    assert rates[-1].generated == pytest.approx(100, abs=1)
    load.num_generated_tokens = 10**6
    assert meter.read("w/1", load, 4000.0).generated == 0.0  # nobody watched for an hour
    meter.end_round()
    assert meter.read("w/1", load, 4001.0).generated == 0.0
    meter.end_round()
    meter.end_round()
    assert meter.read("w/1", load, 4002.0).generated == 0.0


@pytest.fixture
async def service() -> RouterService:
    """A router's parts, none of which runs."""
    return make_service(RouterConfig(model=MODEL, workers=("127.0.0.1:9",), keep_timelines=1000))


def add_workers(service: RouterService, num: int) -> None:
    [model] = service.models
    roles = [WorkerRole.PREFILL, WorkerRole.DECODE]
    for number in range(num):
        each = connection(f"worker-{number:04d}-of-a-large-cluster", roles[number % 2], running=number % 97)
        model.pool._connections[each.address] = each
    model.pool._notify()


def add_requests(service: RouterService, num: int) -> None:
    [model] = service.models
    plan = Plan(worker("worker-0001-of-a-large-cluster"), prefill("worker-0000-of-a-large-cluster"), None, "")
    live = model.metrics.live
    for number in range(num):
        each = live.begin(LiveCompletion(f"{number:032x}-{number:032x}", 0, 9999, 9999, time.monotonic()))
        if number % 4:
            live.routed(each, plan)
            live.tokens(each, number % 4)
        if number % 4 == 2:
            live.tokens(each, 1)


def add_history(service: RouterService) -> None:
    [model] = service.models
    recent = model.metrics.recent
    now_s = [0.0]
    recent._clock, recent._began_s = (lambda: now_s[0]), 0.0
    for second in range(600):
        now_s[0] = float(second)
        for number in range(50):
            recent.planned("remote" if number % 3 else "local")
            recent.prompt_done(1000, number)
            recent.first_token(0.001 * 1.1**number)
            recent.ended(0.001 * 1.1**number, 0.0001 * 1.1**number)
        recent.failed(f"{second:032x}", NoWorker(f"{second}" + "x" * 1000))
    assert service.recording is not None
    assert service.recording.timelines is not None
    for number in range(100):
        trace = RequestTrace("chat", f"{number:0128d}", TraceContext(1, 2, is_sampled=False), None)
        trace.wait(model.name)
        trace.note_failure(NoWorker("none"))
        trace.close()
        service.recording.timelines.keep(trace)
    for number in range(100):
        pool = PoolPlan(target=number, needed=number, factor=1.0)
        plan = PlanReport(application="a", model="m", time_s=1.0, prefill=pool, decode=pool, reason="r" * 4096)
        model.plan._note(plan)


def parsed(event: bytes) -> Any:
    name, _, data = event.partition(b"\n")
    assert name == b"event: state"
    assert data.startswith(b"data: ")
    assert b"\n" not in data[:-2]
    return orjson.loads(data.removeprefix(b"data: "))


async def test_a_message_is_small_and_cheap_whatever_the_size_of_the_cluster(service: RouterService) -> None:
    add_workers(service, 1000)
    add_requests(service, 10_000)
    add_history(service)
    reader = StateReader(service)
    await reader.read()
    begun_s = time.thread_time()
    event = await reader.read()
    cpu_s = time.thread_time() - begun_s
    print(f"{len(event)} bytes, {cpu_s * 1000:.1f} ms")
    assert len(event) < MAX_BYTES
    state = parsed(event)
    assert (state["num_workers"], len(state["workers"])) == (1000, MAX_WORKERS)
    assert [pool["workers"] for pool in state["pools"]] == [500, 500]
    [model] = state["models"]
    stages = {stage["stage"]: stage for stage in model["stages"]}
    assert {name: stage["num"] for name, stage in stages.items()} == {
        "queued": 2500, "prefill": 0, "handover": 5000, "decode": 2500,
    }  # fmt: skip
    assert max(len(stage["requests"]) for stage in stages.values()) == MAX_STAGE_REQUESTS
    assert model["plans"][0]["prefill_target"] == 99
    assert (len(model["plans"]), model["plan"]["decode_target"]) == (12, 99)
    assert len(model["series"]) == 60
    assert [each["id"] for each in state["recent"]] == [f"{number:0128d}" for number in range(99, 99 - MAX_RECENT, -1)]
    assert model["total"]["completions_per_s"] == pytest.approx(50, rel=0.1)


async def test_experts_and_adapters_have_their_bounds() -> None:
    service = make_service(RouterConfig(model=MODEL, workers=("127.0.0.1:9",), keep_timelines=9, enable_lora=True))
    add_workers(service, 1000)
    [model] = service.models
    assert model.catalog is not None
    adapters = [Adapter(f"{number:04d}{'n' * 124}", "/a", "d") for number in range(500)]
    model.catalog._known.update({each.name: each for each in adapters})
    for number, each in enumerate(model.pool.connections):
        load = WorkerLoad(resident_adapters=[each.name for each in adapters[:16]])
        load.experts.CopyFrom(ExpertShare(rank=number, num_ranks=1000, experts=range(256), group="g" * 999))
        each.load.report(load)
        each.load.list_adapters({each.name: each.digest for each in adapters})
    reader = StateReader(service)
    await reader.read()
    begun_s = time.thread_time()
    event = await reader.read()
    print(f"{len(event)} bytes, {(time.thread_time() - begun_s) * 1000:.1f} ms")
    assert len(event) < MAX_BYTES
    state = parsed(event)
    assert {len(each["experts"]["experts"]) for each in state["workers"]} == {MAX_EXPERTS}
    [found] = state["models"]
    assert (found["num_adapters"], len(found["adapters"])) == (500, MAX_ADAPTERS)
    assert {each["loaded"] for each in found["adapters"]} == {1000}
    assert [each["resident"] for each in found["adapters"]] == [1000] * 16 + [0] * (MAX_ADAPTERS - 16)


async def test_other_tasks_run_while_a_large_cluster_is_read(service: RouterService) -> None:
    add_workers(service, 1000)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count())
    try:
        await StateReader(service).read()
    finally:
        task.cancel()
    assert turns >= 5


def walk(value: object) -> Iterator[object]:
    yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(each)


async def test_a_router_without_workers_has_a_state_too(service: RouterService) -> None:
    state = parsed(await StateReader(service).read())
    assert (state["pools"], state["workers"]) == ([], [])
    [model] = state["models"]
    assert (model["ready"], model["plan"], model["errors"]) == (False, None, [])
    assert (model["ttft_target_s"], model["tpot_target_s"]) == (1.0, 0.05)
    assert not any(isinstance(each, float) and each != each for each in walk(state))
