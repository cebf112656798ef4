"""A model divided among ranks that keep experts whole: the same logits and tokens, and each expert on one rank."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.layers.experts import ROW_TILE
from baton.engine.layers.moe import MoE, PartExchange
from baton.engine.parallel.tensor_shard import TensorShard
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case, slow_except
from tests.paged_model import PagedModel
from tests.unit.engine.parallel.test_tensor_parallel import ATOL, Rank0PagedModel, make_requests, mixed_steps, serve
from tests.unit.engine.tensor_rig import TensorRig

MODELS = ("mixtral", "qwen3-moe", "deepseek-v3")

Rigs = Callable[..., TensorRig]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp(request.param) / "model")


@pytest.fixture
def rigs() -> Iterator[Rigs]:
    made: list[TensorRig] = []

    def make(*args: Any, **kwargs: Any) -> TensorRig:
        made.append(TensorRig(*args, has_whole_experts=True, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def experts_of(model: Any) -> list[int]:
    """Return the number of experts that the model holds in each sparse layer."""
    mixtures = [layer.feed_forward for layer in model.layers if isinstance(layer.feed_forward, MoE)]
    return [len(each.experts.slots) for each in mixtures]


@pytest.mark.parametrize("size", [2, slow_case(4)])
def test_logits_and_tokens_equal_those_of_one_rank(model: Path, size: int, rigs: Rigs) -> None:
    one = Engine(EngineConfig(model=str(model), dtype="float32", kv_cache_memory_bytes=1 << 22))
    expected = serve(one, make_requests(6, 0.0))
    rig = rigs(model, size)
    rank0 = Rank0PagedModel(model, rig)
    logits = rig.call(lambda _: mixed_steps(rank0))
    for name, whole in mixed_steps(PagedModel(model)).items():
        torch.testing.assert_close(logits[name], whole, atol=ATOL, rtol=0)
    assert rig.call(lambda engine: serve(engine, make_requests(6, 0.0))) == expected
    models = [rig.engine.runner.model._model, *(rig.follower(rank)._model for rank in range(1, size))]
    counts = [experts_of(each) for each in models]
    assert [sum(layer) for layer in zip(*counts, strict=True)] == experts_of(one.runner.model)
    assert max(map(max, counts)) - min(map(min, counts)) <= 1


@pytest.mark.parametrize("model", slow_except(MODELS, {"mixtral", "deepseek-v3"}), indirect=True)
def test_two_runs_give_the_same_bits(model: Path, rigs: Rigs) -> None:
    runs = []
    for _ in range(2):
        rig = rigs(model, 4, dtype="bfloat16")
        rank0 = Rank0PagedModel(model, rig)
        runs.append(rig.call(lambda _, rank0=rank0: mixed_steps(rank0)))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


@pytest.mark.parametrize(("count", "size"), [(8, 2), (7, 3), (2, 4), (256, 6)])
def test_every_expert_is_on_exactly_one_rank(count: int, size: int) -> None:
    shares = [TensorShard(rank, size, has_whole_experts=True).experts_of(count) for rank in range(size)]
    assert [expert for share in shares for expert in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert TensorShard(1, 2).experts_of(8) == range(8)  # a shard of each


def test_a_rank_computes_only_the_rows_of_its_experts() -> None:
    x = torch.arange(5.0).view(5, 1)
    chosen = torch.tensor([[0, 3], [2, 1], [3, 2], [0, 1], [2, 3]])
    dispatch = PartExchange(2, 2).dispatch(x, chosen)  # experts 2 and 3
    arrived = dispatch.receive()
    assert arrived.sizes == [ROW_TILE, ROW_TILE]
    assert arrived.rows[:3, 0].tolist() == [1.0, 2.0, 4.0]
    assert arrived.rows[ROW_TILE : ROW_TILE + 3, 0].tolist() == [0.0, 2.0, 4.0]
    weights = torch.tensor([[1.0, 2.0]] * 5)
    combined = dispatch.combine(arrived.rows + 10, weights)
    assert combined[:, 0].tolist() == [20.0, 11.0, 36.0, 0.0, 42.0]


def test_a_rank_without_tokens_for_its_experts_returns_zeros() -> None:
    x = torch.ones(3, 4)
    for tokens in (x, x[:0]):
        dispatch = PartExchange(6, 2).dispatch(tokens, torch.zeros(len(tokens), 2, dtype=torch.int64))
        assert dispatch.receive().rows.shape == (0, 4)
        assert torch.equal(dispatch.combine(x[:0], torch.ones(len(tokens), 2)), torch.zeros(len(tokens), 4))
