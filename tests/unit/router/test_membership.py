"""Workers that join and leave, with and without the registry's leases."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from baton.membership.registry.base import Listener, RegistryView
from baton.membership.registry.memory import MemoryRegistry
from baton.protos.worker_pb2 import WORKER_ROLE_PREFILL, WorkerLoad
from baton.router.policy.cluster import RoutedRequest, find_candidates
from baton.router.workers.pool import WorkerPool
from tests.unit.router.rigs.pools import MODEL_NAME, member_of, ready, running_pool
from tests.unit.router.rigs.running_router import until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker


class ToldRegistry(MemoryRegistry):
    """A registry with the views that the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.views: asyncio.Queue[RegistryView] = asyncio.Queue()

    async def follow(self, listener: Listener) -> None:
        """Report one view after the other, until cancelled."""
        while True:
            listener(await self.views.get())


async def started(stack: AsyncExitStack, *names: str) -> list[ScriptedWorker]:
    workers = [ScriptedWorker(name) for name in names]
    for worker in workers:
        await worker.start()
        stack.push_async_callback(worker.stop)
    return workers


def known(pool: WorkerPool) -> set[str]:
    return {connection.address for connection in pool.connections}


async def test_a_registered_worker_is_found_and_one_that_left_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.router.workers.connection.GIVE_UP_S", 0.05)
    registry = MemoryRegistry()
    async with AsyncExitStack() as stack, running_pool(registry) as pool:
        first, second = await started(stack, "decode-0", "decode-1")
        registry.put(member_of(first))
        await until(lambda: ready(pool) == {first.address})
        registry.put(member_of(second))
        await until(lambda: ready(pool) == {first.address, second.address})
        await second.stop()
        registry.remove(second.incarnation)
        await until(lambda: known(pool) == {first.address})
        await second.start()  # where it was before, in another life
        registry.put(member_of(second))
        await until(lambda: ready(pool) == {first.address, second.address})
        assert known(pool) == {first.address, second.address}


async def test_a_reachable_worker_outlives_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.router.workers.connection.GIVE_UP_S", 0.05)
    registry = MemoryRegistry()
    async with AsyncExitStack() as stack, running_pool(registry) as pool:
        (worker,) = await started(stack, "decode-0")
        registry.put(member_of(worker))
        await until(lambda: ready(pool) == {worker.address})
        incarnation = worker.incarnation
        registry.remove(incarnation)
        await until(lambda: not pool.connections[0].is_listed)
        await asyncio.sleep(0.2)  # long after a worker that is gone is given up
        assert ready(pool) == {worker.address}
        assert pool.connection(incarnation) is not None
        await worker.stop()
        await until(lambda: known(pool) == set())


async def test_attempts_at_a_listed_worker_never_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.router.workers.connection.GIVE_UP_S", 0.05)
    registry = MemoryRegistry()
    async with AsyncExitStack() as stack, running_pool(registry) as pool:
        (worker,) = await started(stack, "decode-0")
        registry.put(member_of(worker))
        await until(lambda: ready(pool) == {worker.address})
        await worker.stop()
        await until(lambda: ready(pool) == set())
        await asyncio.sleep(0.2)
        assert known(pool) == {worker.address}
        await worker.start()
        await until(lambda: ready(pool) == {worker.address})


async def test_members_are_kept_while_the_registry_is_lost() -> None:
    registry = ToldRegistry()
    async with AsyncExitStack() as stack, running_pool(registry) as pool:
        first, second = await started(stack, "decode-0", "decode-1")
        members = (member_of(first), member_of(second))
        registry.views.put_nowait(RegistryView(members, is_listed=True))
        await until(lambda: ready(pool) == {first.address, second.address})
        registry.views.put_nowait(RegistryView(members, is_listed=True, error="gone"))
        await until(lambda: pool.view.error == "gone")
        await second.stop()
        await until(lambda: ready(pool) == {first.address})
        await second.start()
        await until(lambda: ready(pool) == {first.address, second.address})
        registry.views.put_nowait(RegistryView((), is_listed=True))  # it is back, with nothing in it yet
        await until(lambda: pool.view.error is None)
        registry.views.put_nowait(RegistryView((members[0], member_of(second)), is_listed=True))
        await until(lambda: all(connection.is_listed for connection in pool.connections))
        assert ready(pool) == {first.address, second.address}


async def test_other_models_workers_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    registry = MemoryRegistry()
    async with AsyncExitStack() as stack, running_pool(registry) as pool:
        ours, theirs = await started(stack, "decode-0", "decode-1")
        registry.put(member_of(theirs, "another"))
        registry.put(member_of(ours))
        await until(lambda: ready(pool) == {ours.address})
        assert known(pool) == {ours.address}
        assert len(pool.view.members) == 2
    assert caplog.text.count("this router serves bundled_model, not another") == 1


async def test_another_models_worker_at_a_listed_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("baton.router.workers.connection.GIVE_UP_S", 0.05)
    registry = MemoryRegistry()
    async with AsyncExitStack() as stack, running_pool(registry) as pool:
        (worker,) = await started(stack, "decode-0")
        listed = member_of(worker)
        registry.put(listed)
        await until(lambda: ready(pool) == {worker.address})
        await worker.stop()  # and its lease holds for a while
        worker.model = "another"
        await worker.start()
        await until(lambda: "it serves another, not bundled_model" in pool.connections[0].last_error)
        assert not pool.unlearnt
        registry.remove(listed.incarnation)
        await until(lambda: known(pool) == set())
    assert caplog.text.count("is refused: it serves another, not bundled_model") == 1


async def test_a_worker_at_a_fixed_address_may_have_another_model_name(caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncExitStack() as stack:
        (worker,) = await started(stack, "decode-0")
        worker.model = "another"
        pool = await stack.enter_async_context(running_pool(MemoryRegistry([worker.address])))
        await until(lambda: ready(pool) == {worker.address})
    assert caplog.text.count("is used anyway: it serves another, not bundled_model") == 1


@pytest.mark.parametrize("model", [MODEL_NAME, "another"])
async def test_a_worker_whose_tokenizer_differs_is_refused(model: str, caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncExitStack() as stack:
        (worker,) = await started(stack, "decode-0")
        worker.model, worker.vocabulary = model, "theirs"
        pool = await stack.enter_async_context(running_pool(MemoryRegistry([worker.address]), vocabulary="ours"))
        await until(
            lambda: bool(pool.connections) and "vocabulary 'theirs', not 'ours'" in pool.connections[0].last_error
        )
        assert not ready(pool)
    assert caplog.text.count("is refused: its tokenizer has other tokens than this router's") == 1


@pytest.mark.parametrize("vocabulary", ["", "ours"])
async def test_a_worker_with_the_same_tokenizer_or_none_is_used(vocabulary: str) -> None:
    async with AsyncExitStack() as stack:
        (worker,) = await started(stack, "decode-0")
        worker.vocabulary = vocabulary
        pool = await stack.enter_async_context(running_pool(MemoryRegistry([worker.address]), vocabulary="ours"))
        await until(lambda: ready(pool) == {worker.address})


async def test_a_worker_with_an_invalid_id_is_refused() -> None:
    async with AsyncExitStack() as stack:
        (worker,) = await started(stack, "工人-0")
        pool = await stack.enter_async_context(running_pool(MemoryRegistry([worker.address])))
        await until(lambda: bool(pool.connections) and "visible ASCII" in pool.connections[0].last_error)
        assert not ready(pool)


async def test_a_worker_with_impossible_blocks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.router.rigs.scripted_worker.BLOCK_SIZE", 0)
    async with AsyncExitStack() as stack:
        (worker,) = await started(stack, "decode-0")
        pool = await stack.enter_async_context(running_pool(MemoryRegistry([worker.address])))
        await until(lambda: bool(pool.connections) and "blocks of 0" in pool.connections[0].last_error)
        assert not ready(pool)


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0])
async def test_a_worker_with_invalid_rates_is_refused(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        (worker,) = await started(stack, "decode-0")
        monkeypatch.setattr(worker, "_load", lambda: WorkerLoad(num_blocks=10, decode_step_s=rate))
        pool = await stack.enter_async_context(running_pool(MemoryRegistry([worker.address])))
        await until(lambda: bool(pool.connections) and "decode_step_s is" in pool.connections[0].last_error)
        assert not ready(pool)


async def test_a_worker_with_two_addresses_is_one() -> None:
    async with AsyncExitStack() as stack:
        (worker,) = await started(stack, "decode-0")
        worker.cache(range(8))
        names = [worker.address, worker.address.replace("127.0.0.1", "localhost")]
        pool = await stack.enter_async_context(running_pool(MemoryRegistry(names)))
        await until(lambda: any("it is the one at" in each.last_error for each in pool.connections))
        await until(lambda: pool.index.num_blocks(worker.incarnation) == 2)
        assert len(ready(pool)) == 1
        assert len(pool.snapshot().workers) == 1


async def test_workers_with_the_same_id_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncExitStack() as stack:
        first, second = await started(stack, "decode-0", "decode-1")
        pool = await stack.enter_async_context(running_pool(MemoryRegistry([first.address, second.address])))
        await until(lambda: len(ready(pool)) == 2)
        assert not pool.is_ambiguous("decode-0")
        await second.stop()
        second.worker_id = "decode-0"
        second.num_lives += 1  # each worker's lives have names of their own
        await second.start()
        await until(lambda: pool.is_ambiguous("decode-0"))
        assert f"the workers at {first.address}, {second.address} all have the id decode-0" in caplog.text
        await second.stop()
        await until(lambda: not pool.is_ambiguous("decode-0"))


async def test_only_equal_fingerprints_are_offered_together() -> None:
    registry = MemoryRegistry()
    async with AsyncExitStack() as stack, running_pool(registry) as pool:
        old, new = await started(stack, "prefill-old", "prefill-new")
        decoders = await started(stack, "decode-old", "decode-new")
        for worker in (old, new):
            worker.role = WORKER_ROLE_PREFILL
        for worker in (new, decoders[1]):
            worker.fingerprint = "new"
        for worker in (old, new, *decoders):
            registry.put(member_of(worker))
        await until(lambda: len(ready(pool)) == 4)
        cluster = pool.snapshot()
        candidates = find_candidates(RoutedRequest(10), cluster)
        offers = {
            decode.worker_id: [prefill.worker_id for prefill in candidates.prefillers_for(decode)]
            for decode in cluster.decoders()
        }
        assert offers == {"decode-old": ["prefill-old"], "decode-new": ["prefill-new"]}
