"""Prometheus series of the workers."""

from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from baton.membership.registry.memory import MemoryRegistry
from baton.protos.worker_pb2 import WorkerLoad
from baton.router.metrics.worker_series import WorkerSeries
from baton.rpc.handover_times import HandoverTimes
from tests.unit.router.rigs.pools import MODEL_NAME, ready, running_pool
from tests.unit.router.rigs.running_router import until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker
from tests.unit.router.series import read_series


def handovers(registry: CollectorRegistry) -> dict[str, float]:
    """Return the counter's value by worker."""
    prefix = f'baton:handovers_total{{model_name="{MODEL_NAME}",worker="'
    series = read_series(registry).items()
    return {name.removeprefix(prefix).rstrip('"}'): value for name, value in series if name.startswith(prefix)}


async def test_a_counter_does_not_begin_before_the_first_report() -> None:
    worker, registry = ScriptedWorker(), CollectorRegistry()
    worker.may_tell.clear()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(worker.stop)
        pool = await stack.enter_async_context(running_pool(MemoryRegistry([await worker.start()])))
        stack.callback(worker.may_tell.set)
        registry.register(WorkerSeries(pool, MODEL_NAME))
        await until(lambda: bool(worker.num_watches))  # so it is known who is there
        assert pool.connections[0].description is not None
        assert handovers(registry) == {}
        worker.may_tell.set()
        await until(lambda: ready(pool) == {worker.address})
        assert handovers(registry) == {"decode-0": 3}
        info = f'address="{worker.address}",model_name="{MODEL_NAME}",role="decode",worker="decode-0"'
        assert read_series(registry)[f"baton:worker_info{{{info}}}"] == 1


async def test_workers_with_the_same_id_have_separate_series() -> None:
    workers, registry = [ScriptedWorker(), ScriptedWorker()], CollectorRegistry()
    workers[1].num_lives = 7  # so that their lives have different names
    async with AsyncExitStack() as stack:
        addresses = [await worker.start() for worker in workers]
        for worker in workers:
            stack.push_async_callback(worker.stop)
        pool = await stack.enter_async_context(running_pool(MemoryRegistry(addresses)))
        registry.register(WorkerSeries(pool, MODEL_NAME))
        await until(lambda: ready(pool) == set(addresses))
        assert handovers(registry) == {f"decode-0@{address}": 3 for address in addresses}
        transports = [name for name in read_series(registry) if name.startswith("baton:kv_transport_info")]
        assert len(transports) == 2
        await workers[1].stop()
        await until(lambda: ready(pool) == {addresses[0]})
        assert handovers(registry) == {"decode-0": 3}


async def test_drafts_of_a_worker_are_shown_by_position() -> None:
    worker, registry = ScriptedWorker(), CollectorRegistry()
    worker.load = WorkerLoad(num_drafts=4, num_draft_tokens=12, accepted_by_position=[3, 1, 1, 0])
    async with AsyncExitStack() as stack:
        stack.push_async_callback(worker.stop)
        pool = await stack.enter_async_context(running_pool(MemoryRegistry([await worker.start()])))
        registry.register(WorkerSeries(pool, MODEL_NAME))
        await until(lambda: ready(pool) == {worker.address})
        series = read_series(registry)
    prefix, labels = "baton:spec_decode_num", f'model_name="{MODEL_NAME}"'
    totals = [series[f'{prefix}_{name}_total{{{labels},worker="decode-0"}}'] for name in ("drafts", "draft_tokens")]
    assert totals == [4, 12]
    assert series[f'{prefix}_accepted_tokens_total{{{labels},worker="decode-0"}}'] == 5
    name = f"{prefix}_accepted_tokens_per_pos_total"
    found = [series[f'{name}{{{labels},position="{place}",worker="decode-0"}}'] for place in range(4)]
    assert found == [3, 1, 1, 0]


async def test_seconds_of_handovers_are_shown_by_transport_and_phase() -> None:
    worker, registry, times = ScriptedWorker(), CollectorRegistry(), HandoverTimes()
    times.note("tcp", 4096, {"read": 0.2})
    worker.load = WorkerLoad(completed_handovers=times.to_proto())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(worker.stop)
        pool = await stack.enter_async_context(running_pool(MemoryRegistry([await worker.start()])))
        registry.register(WorkerSeries(pool, MODEL_NAME))
        await until(lambda: ready(pool) == {worker.address})
        series = read_series(registry)
    labels = f'model_name="{MODEL_NAME}",phase="read",transport="tcp",worker="decode-0"'
    assert series[f"baton:handover_seconds_sum{{{labels}}}"] == 0.2
    labels = f'model_name="{MODEL_NAME}",transport="tcp",worker="decode-0"'
    assert series[f"baton:handover_read_bytes_total{{{labels}}}"] == 4096
