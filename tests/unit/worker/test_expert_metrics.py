"""Expert metrics of a rank: correct, with one series per layer."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.experts.group import BalanceSettings, ExpertGroup
from baton.engine.outputs import ExpertShare
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.worker.cache_feed import CacheFeed
from baton.worker.engine_host import EngineHost
from baton.worker.metrics import WorkerMetrics
from baton.worker.reporting import WorkerCounters, load_report
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.unit.engine.group_rig import CPU, HOST, Group, Member

NUM_LAYERS, NUM_EXPERTS, NUM_CHOSEN = 3, 8, 2  # of the model
NUM_PROMPT, NUM_OUTPUT = 40, 5
NUM_COMPUTED = NUM_PROMPT + NUM_OUTPUT - 1  # the last token is not an input
TIMEOUT_S = 60.0

Figures = dict[str, list[float]]  # by layer, if there are several


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("mixtral", tmp_path_factory.mktemp("mixtral") / "model")


@asynccontextmanager
async def hosts(
    model: Path, group: Group | None, names: Sequence[str], balance: BalanceSettings | None = None, fewest: int = 1
) -> AsyncIterator[list[EngineHost]]:
    """Yield workers' engines, which are the ranks of a group if one is given."""
    config = EngineConfig(model=str(model), dtype="float32", kv_cache_memory_bytes=1 << 21, num_threads=1)
    experts = [
        ExpertGroup(Member(group, name), HOST, CPU, balance, fewest_ranks=fewest, name="experts")
        if group is not None
        else None
        for name in names
    ]
    memories = [SharedPool() for _ in names]
    made = [
        asyncio.to_thread(partial(Engine, config, memory.allocate, group=each))
        for memory, each in zip(memories, experts, strict=True)
    ]
    if group is not None:
        group.set_members(*names)
    engines = await asyncio.gather(*made)
    transports = [
        create_transport("shared_memory", PoolIdentity(name, engine.fingerprint), memory, HOST)
        for name, engine, memory in zip(names, engines, memories, strict=True)
    ]
    hosts = [EngineHost(engine, transport) for engine, transport in zip(engines, transports, strict=True)]
    for name, host in zip(names, hosts, strict=True):
        host.start()
        if group is not None:
            group.listeners[name] = partial(wake, asyncio.get_running_loop(), host)
    try:
        yield hosts
    finally:
        for each in experts:
            if each is not None:
                each.ranks.leave()
        for host, transport, memory in zip(hosts, transports, memories, strict=True):
            await host.stop()
            await transport.close()
            memory.close()


def wake(loop: asyncio.AbstractEventLoop, host: EngineHost, epoch: int, round_number: int) -> None:
    """Forward a wake to an engine; callable from any thread."""
    loop.call_soon_threadsafe(lambda: host.call(lambda engine: engine.woken(epoch, round_number)))


async def serve(host: EngineHost) -> None:
    """Run one request."""
    ended = asyncio.Event()
    host.listen(lambda step: ended.set() if any(output.finish_reason for output in step.outputs) else None)
    prompt = random.Random(3).choices(range(3, VOCAB_SIZE), k=NUM_PROMPT)
    sampling = SamplingParams(temperature=0, max_tokens=NUM_OUTPUT, ignore_eos=True)
    await host.call(lambda engine: engine.add(Request(RequestId("a"), prompt, NUM_PROMPT, sampling)))
    async with asyncio.timeout(TIMEOUT_S):
        await ended.wait()


async def expert_families(host: EngineHost) -> list[Metric]:
    """Scrape on another thread."""
    metrics = WorkerMetrics(host, WorkerCounters(), "decode-0", "model")
    families = await asyncio.to_thread(lambda: list(metrics.collect()))
    return [family for family in families if "expert" in family.name]


async def figures(host: EngineHost) -> Figures:
    """Return the samples by name."""
    return {
        sample.name: [each.value for each in family.samples]
        for family in await expert_families(host)
        for sample in family.samples
    }


async def test_tokens_are_counted_where_they_are_computed(mixtral: Path) -> None:
    async with hosts(mixtral, Group(), ["rank-0", "rank-1"]) as (first, second):
        await serve(first)
        ours, others = await figures(first), await figures(second)
    computed = zip(ours["baton:expert_tokens_total"], others["baton:expert_tokens_total"], strict=True)
    assert [sum(ranks) for ranks in computed] == [NUM_COMPUTED * NUM_CHOSEN] * NUM_LAYERS
    assert min(others["baton:expert_tokens_total"]) > 0  # although it has no requests
    shares = ours["baton:expert_busiest_share"]
    assert len(shares) == NUM_LAYERS
    assert all(1 / NUM_EXPERTS < share <= 1 / NUM_CHOSEN for share in shares)
    assert others["baton:expert_busiest_share"] == [0] * NUM_LAYERS
    for told in (ours, others):
        assert told["baton:expert_group_ranks"] == [2]
        assert told["baton:expert_group_epoch"] == [1]


async def test_the_busiest_share_follows_the_expert_routing(mixtral: Path) -> None:
    async with hosts(mixtral, Group(), ["rank-0", "rank-1"]) as (first, _):
        await serve(first)
        told = await figures(first)
        chosen = await first.call(lambda engine: engine.group.tokens_by_expert().tolist())  # type: ignore[union-attr]
    assert [sum(counts) for counts in chosen] == [NUM_COMPUTED * NUM_CHOSEN] * NUM_LAYERS
    expected = [max(counts) / sum(counts) for counts in chosen]
    assert told["baton:expert_busiest_share"] == pytest.approx(expected)


async def test_there_is_one_series_per_layer(mixtral: Path) -> None:
    balance = BalanceSettings(is_enabled=True, step_interval=2)
    async with hosts(mixtral, Group(), ["rank-0", "rank-1"], balance) as (first, _):
        await serve(first)
        families = await expert_families(first)
    assert {family.name for family in families} == {
        "baton:expert_group_epoch",
        "baton:expert_group_ranks",
        "baton:expert_group_short",
        "baton:expert_tokens",
        "baton:expert_busiest_share",
        "baton:expert_imbalance",
    }
    labels = {"worker": "decode-0", "model_name": "model"}
    for family in families:
        if family.name.startswith("baton:expert_group"):
            assert [sample.labels for sample in family.samples] == [labels]
        else:
            expected = [labels | {"layer": str(layer)} for layer in range(NUM_LAYERS)]
            assert [sample.labels for sample in family.samples] == expected
    [imbalances] = [family.samples for family in families if family.name == "baton:expert_imbalance"]
    assert all(1 <= sample.value <= 2 for sample in imbalances)


def standing(engine: Engine) -> tuple[ExpertShare | None, list[list[list[int]]], list[float]]:
    """Return a rank's share of the experts, and the placement and the imbalances by layer, at one moment."""
    assert engine.group is not None
    return engine.group.share(), list(engine.group._slots), list(engine.group.imbalances)


async def test_load_reports_have_the_rank_and_its_experts(mixtral: Path) -> None:
    balance = BalanceSettings(is_enabled=True, step_interval=2)
    async with hosts(mixtral, Group(), ["rank-0", "rank-1"], balance) as pair:
        before = [load_report(await host.stats(), WorkerCounters()).experts for host in pair]
        await serve(pair[0])
        after = [load_report(await host.stats(), WorkerCounters()).experts for host in pair]
        share, slots, imbalances = await pair[0].call(standing)
    assert [(each.rank, each.num_ranks, each.epoch, each.imbalance, each.num_rows) for each in before] == [
        (0, 2, 1, 0.0, 0),
        (1, 2, 1, 0.0, 0),
    ]
    assert {each.group for each in (*before, *after)} == {"experts"}
    assert sorted(expert for each in before for expert in each.experts) == list(range(NUM_EXPERTS))
    assert sum(each.num_rows for each in after) == NUM_COMPUTED * NUM_CHOSEN * NUM_LAYERS
    layer = imbalances.index(max(imbalances))
    assert share is not None
    assert (share.layer, share.imbalance, list(share.experts)) == (layer, max(imbalances), slots[layer][0])


async def test_load_reports_outside_of_a_group_have_no_experts(mixtral: Path) -> None:
    async with hosts(mixtral, None, ["alone"]) as (host,):
        assert not load_report(await host.stats(), WorkerCounters()).HasField("experts")


async def test_a_group_that_is_short_of_ranks_still_serves_metrics(mixtral: Path) -> None:
    group = Group()
    async with hosts(mixtral, group, ["rank-0", "rank-1"], fewest=2) as (first, _):
        await serve(first)
        before = await figures(first)
        assert before["baton:expert_group_short"] == [0]
        group.set_members("rank-0")
        async with asyncio.timeout(TIMEOUT_S):
            while not first.is_short_of_ranks:
                await asyncio.sleep(0.01)
        short = await figures(first)
        assert short.pop("baton:expert_group_short") == [1]
        assert short == {name: values for name, values in before.items() if name in short}
        assert (await first.stats()).num_generated_tokens == NUM_OUTPUT
        feed = CacheFeed(first)
        async with asyncio.timeout(TIMEOUT_S):
            await feed.refresh()
        group.set_members("rank-0", "rank-1")
        async with asyncio.timeout(TIMEOUT_S):
            while (await figures(first))["baton:expert_group_short"] != [0]:
                await asyncio.sleep(0.01)


async def test_a_worker_without_a_group_has_no_expert_metrics(mixtral: Path) -> None:
    async with hosts(mixtral, None, ["alone"]) as (host,):
        assert await expert_families(host) == []
