"""Workers of several ranks in a cluster's plan: division of cores and memory, and shards of KV blocks."""

from dataclasses import replace
from pathlib import Path

import pytest

from baton.deployment.local.cluster_config import ClusterConfig
from baton.deployment.ray.process import worker_process
from baton.engine.moe import MoEConfig
from baton.settings.values import OptionError
from tests.unit.deployment.local.test_cluster_config import CHECKPOINT, MACHINE, MODEL, by_id, plan, settings
from tests.unit.deployment.ray.test_ray_settings import NODE
from tests.unit.deployment.ray.test_ray_settings import settings as ray_settings

MOE = MoEConfig(num_experts=8, num_experts_per_token=2, intermediate_size=64)
RANKS = {"tensor_parallel": 2, "prefill_tensor_parallel": 3}


@pytest.mark.parametrize(
    ("config", "num_ranks"),
    [
        (ClusterConfig(), 2),
        (ClusterConfig(tensor_parallel=4), 1 + 4),
        (ClusterConfig(prefill_tensor_parallel=4), 4 + 1),
        (ClusterConfig(prefill=3, decode=2, prefill_tensor_parallel=2, tensor_parallel=5), 3 * 2 + 2 * 5),
        (ClusterConfig(colocated=3, tensor_parallel=2), 3 * 2),
        (ClusterConfig(colocated=1, decode=2, prefill=0, tensor_parallel=2, prefill_tensor_parallel=8), 3 * 2),
    ],
)
def test_ranks_are_the_processes_that_compute(config: ClusterConfig, num_ranks: int) -> None:
    assert config.num_ranks == num_ranks


@pytest.mark.parametrize(("prefill", "decode", "num_parts"), [(1, 1, 1), (2, 1, 2), (1, 4, 4), (2, 4, 4), (4, 6, 12)])
def test_blocks_have_shards_for_workers_of_both_sizes(prefill: int, decode: int, num_parts: int) -> None:
    config = ClusterConfig(prefill_tensor_parallel=prefill, tensor_parallel=decode)
    assert config.kv_shards == num_parts
    assert config.num_tensor_ranks("prefill") == prefill
    assert config.num_tensor_ranks("decode") == config.num_tensor_ranks("both") == decode


def test_cores_and_memory_are_divided_among_ranks(tmp_path: Path) -> None:
    workers = by_id(plan(settings(tmp_path, prefill=1, decode=3, prefill_tensor_parallel=2)))
    assert {each.engine.num_threads for each in workers.values()} == {MACHINE.num_cores // 5}
    memory_bytes = MACHINE.memory_bytes // 8 // 5
    assert {each.engine.kv_cache_memory_bytes for each in workers.values()} == {memory_bytes}
    crowded = by_id(plan(settings(tmp_path, tensor_parallel=64)))
    assert {each.engine.num_threads for each in crowded.values()} == {1}
    explicit = by_id(plan(settings(tmp_path, tensor_parallel=4, num_threads=3)))
    assert {each.engine.num_threads for each in explicit.values()} == {3}


def test_a_plan_has_each_pools_ranks_and_the_same_shards_everywhere(tmp_path: Path) -> None:
    planned = plan(settings(tmp_path, prefill=1, decode=2, **RANKS))
    workers = by_id(planned)
    assert {name: each.tensor_parallel for name, each in workers.items()} == {
        "prefill-0": 3,
        "decode-0": 2,
        "decode-1": 2,
    }
    assert {each.engine.kv_shards for each in workers.values()} == {6}
    assert planned.rendezvous is None
    [_, prefill, decode, _] = planned.specs(tmp_path)
    assert {"--tensor-parallel=3", "--kv-shards=6"} <= {*prefill.argv}
    assert {"--tensor-parallel=2", "--kv-shards=6"} <= {*decode.argv}


def test_workers_of_one_rank_have_blocks_without_shards(tmp_path: Path) -> None:
    planned = plan(settings(tmp_path))
    assert {each.engine.kv_shards for each in planned.workers} == {None}
    assert not any(
        word.startswith(("--kv-shards", "--tensor-")) for spec in planned.specs(tmp_path) for word in spec.argv
    )


def test_more_shards_can_be_requested(tmp_path: Path) -> None:
    """For workers of other sizes that are started separately."""
    planned = plan(settings(tmp_path, "engine: {kv_shards: 8}\n", tensor_parallel=2))
    assert {each.engine.kv_shards for each in planned.workers} == {8}


def test_expert_ranks_equal_to_tensor_ranks_are_those_of_one_worker(tmp_path: Path) -> None:
    sparse = replace(CHECKPOINT, config=replace(MODEL, moe=MOE))
    planned = plan(settings(tmp_path, tensor_parallel=2, expert_parallel=2), sparse)
    same = plan(settings(tmp_path, tensor_parallel=2, enable_expert_parallel=True), sparse)
    assert same.workers == planned.workers
    assert {name: (each.tensor_parallel, each.expert_parallel) for name, each in by_id(planned).items()} == {
        "prefill-0": (1, 1),
        "decode-0": (2, 2),
    }
    assert planned.rendezvous is None
    assert {each.group_size for each in planned.workers} == {1}
    with pytest.raises(OptionError, match="expert_parallel: 4, but the experts are on the 2 ranks"):
        plan(settings(tmp_path, tensor_parallel=2, expert_parallel=4), sparse)
    with pytest.raises(OptionError, match="expert_parallel: large is a dense model without experts to spread"):
        plan(settings(tmp_path, tensor_parallel=2, expert_parallel=2))


def test_replicas_on_ray_planned_one_by_one_are_compatible() -> None:
    read = ray_settings(**RANKS, prefill_ray={"num_cpus": 2})
    with worker_process(read, "prefill", "prefill-abc", NODE) as prefill:
        assert {"--tensor-parallel=3", "--kv-shards=6", "--num-threads=1"} <= {*prefill.argv}
    with worker_process(read, "decode", "decode-abc", NODE) as decode:
        assert {"--tensor-parallel=2", "--kv-shards=6", "--num-threads=1"} <= {*decode.argv}
    one_thread = ray_settings(prefill_tensor_parallel=2)
    with worker_process(one_thread, "decode", "decode-abc", NODE) as decode:
        assert {"--kv-shards=2", "--num-threads=2"} <= {*decode.argv}
        assert not any(word.startswith("--tensor-parallel") for word in decode.argv)
