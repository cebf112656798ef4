"""Recurrent layers divided among ranks: the logits of one rank up to rounding, the same tokens, states in shards."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import EngineConfig
from baton.engine.delta_net import DeltaNetConfig
from baton.engine.engine import Engine
from baton.engine.errors import UnsupportedModel
from baton.engine.execution.batch import pack, unpack
from baton.engine.execution.load_plan import LoadPlan
from baton.engine.kv.state_layout import StateLayout
from baton.engine.mamba import Mamba2Config
from baton.engine.parallel.tensor_shard import TensorShard
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.paged_model import PagedModel
from tests.unit.engine.parallel.test_tensor_parallel import (
    ATOL,
    Rank0PagedModel,
    Rigs,
    make_requests,
    mixed_steps,
    serve,
)
from tests.unit.engine.tensor_rig import TensorRig
from tests.unit.engine.test_recurrent_models import add, drain, random_tokens

ONE_GROUP = {"mamba_n_groups": 1}  # the heads of a group, with one norm, are on several ranks
FOUR_HEADS = {"num_key_value_heads": 4, "linear_num_key_heads": 4, "linear_num_value_heads": 8}
MORE = ("qwen3.5", "qwen3.5-moe", "nemotron-h", "nemotron-h-moe", "granite-hybrid", "falcon-h1", "falcon-h1-plain")


@pytest.fixture
def rigs() -> Iterator[Rigs]:
    """Factory of groups of ranks that are closed after the test."""
    made: list[TensorRig] = []

    def make(*args: Any, **kwargs: Any) -> TensorRig:
        made.append(TensorRig(*args, **({"state_checkpoint_tokens": 32} | kwargs)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def one_engine(model: Path, **options: Any) -> Engine:
    given = {"dtype": "float32", "kv_cache_memory_bytes": 1 << 21, "num_threads": 1, "state_checkpoint_tokens": 32}
    return Engine(EngineConfig(model=str(model), **(given | options)))


@pytest.mark.parametrize(
    ("architecture", "size", "sizes"),
    [
        ("qwen3-next", 2, {}),
        ("granite-hybrid-moe", 2, ONE_GROUP),
        ("mamba2", 4, {}),  # two groups on four ranks
        slow_case("mamba2", 2, {}),
        slow_case("qwen3-next", 4, {}),  # two shards on four ranks, which compute each of them twice
        slow_case("qwen3.5", 4, FOUR_HEADS),
        slow_case("bamba", 2, ONE_GROUP),
        slow_case("bamba", 4, ONE_GROUP),  # the same for a norm on all ranks
        slow_case("falcon-h1", 2, ONE_GROUP),  # the norm is in front of the gates
        slow_case("falcon-h1", 4, ONE_GROUP | {"num_key_value_heads": 4}),
        *(slow_case(name, 2, {}) for name in MORE),
    ],
)
def test_logits_equal_those_of_one_rank_up_to_rounding(
    architecture: str, size: int, sizes: dict[str, Any], tmp_path: Path, rigs: Rigs
) -> None:
    model = make_checkpoint(architecture, tmp_path / "model", **sizes)
    rig = rigs(model, size)
    rank0 = Rank0PagedModel(model, rig)
    logits = rig.call(lambda _: mixed_steps(rank0))
    for name, expected in mixed_steps(PagedModel(model)).items():
        assert expected.std() > 0.3
        torch.testing.assert_close(logits[name], expected, atol=ATOL, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["qwen3-next", "granite-hybrid-moe", "nemotron-h-moe"])
def test_whole_experts_next_to_divided_recurrent_layers(architecture: str, tmp_path: Path, rigs: Rigs) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    rig = rigs(model, 2, has_whole_experts=True)
    rank0 = Rank0PagedModel(model, rig)
    logits = rig.call(lambda _: mixed_steps(rank0))
    for name, expected in mixed_steps(PagedModel(model)).items():
        torch.testing.assert_close(logits[name], expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize("architecture", ["nemotron-h", *map(slow_case, ("qwen3-next", "falcon-h1", "mamba2"))])
def test_tokens_equal_those_of_one_rank_after_preemptions(architecture: str, tmp_path: Path, rigs: Rigs) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    prompts = {f"p{index}": random_tokens(40 + index, seed=1) for index in range(6)}
    one = one_engine(model, block_size=8)
    expected = {}
    for name, prompt in prompts.items():
        add(one, name, prompt)
        expected |= drain(one)
    plan = LoadPlan.of(one.config, one.model_config, TensorShard(size=2), is_expert_parallel=False)
    # A request takes 9 blocks for its KV, and as many as a state for its own and for a checkpoint.
    num_bytes = (16 + 2 * plan.groups.num_state_blocks) * plan.layout.block_bytes
    options = {"block_size": 8, "kv_cache_memory_bytes": num_bytes}
    rig = rigs(model, 2, max_num_batched_tokens=40, max_num_seqs=8, **options)

    def run(engine: Engine) -> dict[str, list[int]]:
        for name, prompt in prompts.items():
            add(engine, name, prompt)
        tokens = drain(engine)
        assert engine.scheduler.num_preemptions > 0
        return tokens

    assert rig.call(run) == expected


@pytest.mark.parametrize("architecture", ["mamba2", *map(slow_case, ("qwen3-next", "nemotron-h", "falcon-h1"))])
def test_a_hit_begins_with_the_states_of_a_checkpoint(architecture: str, tmp_path: Path, rigs: Rigs) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    first = random_tokens(70)
    prompts = {"first": first, "again": [*first[:66], *random_tokens(9)]}

    def run(engine: Engine) -> dict[str, list[int]]:
        tokens = {}
        for name, prompt in prompts.items():
            request = add(engine, name, prompt)
            tokens |= drain(engine)
        assert request.num_cached_tokens == 64
        return tokens

    assert rigs(model, 2).call(run) == run(one_engine(model))


@pytest.mark.parametrize("architecture", ["nemotron-h", *map(slow_case, ("qwen3-next", "falcon-h1", "mamba2"))])
def test_ranks_have_the_shards_of_one_ranks_states(architecture: str, tmp_path: Path, rigs: Rigs) -> None:
    """So a handover between them needs no more than the shards of blocks."""
    model = make_checkpoint(architecture, tmp_path / "model")
    one = one_engine(model, kv_shards=2)
    rig = rigs(model, 2, kv_cache_memory_bytes=1 << 20)
    for engine in (one, rig.engine):
        rig.call(lambda _, engine=engine: serve(engine, make_requests(3, 0.0)))
    assert len(one.pool) == len(rig.engine.pool) == len(rig.follower(1).pool)
    assert one.groups == rig.engine.groups
    assert one.fingerprint == rig.engine.fingerprint
    parts = torch.cat([rig.engine.pool, rig.follower(1).pool], dim=1)
    assert one.pool.count_nonzero() > 5_000
    torch.testing.assert_close(parts, one.pool, atol=ATOL, rtol=1e-5)  # KV is as large as 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "quantization", "least"),
    [  # each rank rounds its own columns of a projection, in groups of its own
        ("qwen3-next", "int8", 0.97),
        ("qwen3-next", "int4", 0.85),
        ("nemotron-h", "int8", 0.999),
        ("nemotron-h", "int4", 0.98),
        ("falcon-h1", "int4", 0.96),
        ("mamba2", "int4", 0.98),
    ],
)
def test_rounded_weights_give_the_logits_of_one_ranks_rounded_weights(
    architecture: str, quantization: str, least: float, tmp_path: Path, rigs: Rigs
) -> None:
    if quantization == "int8" and not torch.cpu._is_vnni_supported():
        pytest.skip("products in int8 need VNNI")
    model = make_checkpoint(architecture, tmp_path / "model")
    prompt, options = {"s": random_tokens(60)}, {"dtype": "bfloat16", "quantization": quantization}
    expected = PagedModel(model, dtype="bfloat16", quantization=quantization).step(prompt)["s"]
    rank0 = Rank0PagedModel(model, rig := rigs(model, 2, **options))
    found = rig.call(lambda _: rank0.step(prompt)["s"])
    assert torch.nn.functional.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > least


def test_a_batch_is_sent_with_the_blocks_of_its_states(tmp_path: Path) -> None:
    paged = PagedModel(make_checkpoint("mamba2", tmp_path / "model"))
    for count in (30, 1):
        batch = paged.batch(["a", "b"], [[5] * count, [6] * 3])
        sent = unpack(pack(batch)).states
        assert batch.states is not None
        assert sent is not None
        assert torch.equal(sent.joined(), batch.states.joined())
        assert sent.sources.shape == sent.targets.shape == (2, paged.groups.num_state_blocks)
        assert len(sent.new_rows) == (2 if count == 30 else 0)


def test_heads_that_cannot_be_divided_are_named(tmp_path: Path) -> None:
    odd = make_checkpoint("qwen3-next", tmp_path / "odd", linear_num_key_heads=3, linear_num_value_heads=6)
    config, options = read_model_config(odd), EngineConfig(model=str(odd), device="cpu")
    with pytest.raises(
        UnsupportedModel, match=r"cannot be divided into 2 shards, .* or kv_shards: linear_num_key_heads 3$"
    ):
        LoadPlan.of(options, config, TensorShard(size=2), is_expert_parallel=False)
    net = DeltaNetConfig(layers=(0,), num_key_heads=2, num_value_heads=4, key_dim=4, value_dim=4, conv_size=3)
    assert StateLayout.of(net, 400, 32, num_shards=2).layer_size == net.part(2).state_size == net.state_size // 2
    mixer = Mamba2Config(layers=(0,), num_heads=6, head_dim=4, num_groups=3, state_dim=4, conv_size=3)
    assert mixer.uneven(2) == ["Mamba-2 groups 3"]
    assert mixer.uneven(4) == ["Mamba-2 heads 6", "Mamba-2 groups 3"]
    assert mixer.uneven(3) == mixer.uneven(6) == []
