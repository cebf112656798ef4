"""KV in FP8: how near a model stays to itself, and that a request's tokens do not depend on where its KV came from."""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from deployment.kv_memory import kv_bytes_per_token
from engine.config import EngineConfig
from engine.engine import Engine
from engine.kv_cache import KVCacheLayout
from engine.kv_dtype import kv_cache_dtype, row_bytes
from engine.model_config import read_model_config
from engine.request import Request, RequestId
from engine.sampling_params import SamplingParams
from tests.checkpoints import VOCAB_SIZE, make_checkpoint
from tests.kv_scales import add_kv_scales
from tests.paged_model import PagedModel
from tests.unit.engine.perplexity import logits_of, perplexity
from tests.unit.engine.tensor_rig import TensorRig


@pytest.fixture(scope="module")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("llama3") / "model")


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_kv_scales(make_checkpoint("qwen3", tmp_path_factory.mktemp("scaled") / "model"))


@pytest.fixture(params=["llama3", "scaled"])
def model(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


def engine_config(model: Path, kv_parts: int | None = None) -> EngineConfig:
    return EngineConfig(
        model=str(model), dtype="float32", kv_cache_dtype="fp8", kv_cache_memory_bytes=1 << 21, kv_parts=kv_parts
    )


def random_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=count)


def greedy(engine: Engine, name: str, prompt: list[int]) -> list[int]:
    """A request's tokens, nothing beside it."""
    sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    engine.add(Request(RequestId(name), [*prompt], len(prompt), sampling))
    said = []
    while engine.has_work:
        said += [each.sampled.token_id for each in engine.run(engine.schedule()).outputs if each.sampled is not None]
    engine.check_integrity()
    return said


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bundled_models_perplexity_stays(dtype: str) -> None:
    usual = perplexity(dtype=dtype)
    assert usual < 200  # it knows such texts
    assert perplexity(dtype=dtype, kv_dtype="fp8") == pytest.approx(usual, rel=0.01)


def test_logits_are_as_near_as_three_digits_allow(model: Path) -> None:
    """An element is off by 1/38 of itself in the root mean square, 1/16 at most, each alone: what an attention adds up
    of many of them is no further off, and three layers' errors come to twice that.
    """
    tokens = random_tokens(300, 1)
    exact = logits_of(PagedModel(model, dtype="float32"), tokens, 70)
    near = logits_of(PagedModel(model, dtype="float32", kv_dtype="fp8"), tokens, 70)
    error = (near - exact).square().mean(-1).sqrt().median() / exact.std()
    assert 0.002 < error < 0.1


def test_a_checkpoints_scales_are_used(tmp_path: Path) -> None:
    """Such small ones that all KV becomes the greatest number there is, or what is next to it."""
    model = make_checkpoint("llama3", tmp_path / "model")
    tokens = random_tokens(100, 1)
    exact = logits_of(PagedModel(model, dtype="float32"), tokens, 70)
    add_kv_scales(model, first=1e-4)
    for kv_dtype, is_far in (("auto", False), ("int8", False), ("fp8", True)):
        logits = logits_of(PagedModel(model, dtype="float32", kv_dtype=kv_dtype), tokens, 70)
        assert ((logits - exact).square().mean().sqrt() > 0.3 * exact.std()) == is_far


def test_a_prefix_from_the_cache_gives_the_same_tokens(model: Path) -> None:
    prompts = [random_tokens(count, count) for count in (40, 100, 161)]
    expected = [greedy(Engine(engine_config(model)), "cold", prompt) for prompt in prompts]
    engine = Engine(engine_config(model))
    for turn in range(2):
        for index, prompt in enumerate(prompts):
            assert greedy(engine, f"{turn}-{index}", prompt) == expected[index]
    assert engine.scheduler.num_cached_tokens >= 32 + 96 + 160


@pytest.fixture
def two_ranks(scaled: Path) -> Iterator[TensorRig]:
    with closing(TensorRig(scaled, 2, kv_cache_dtype="fp8")) as rig:
        yield rig


def test_parts_and_ranks_give_the_same_tokens(scaled: Path, two_ranks: TensorRig) -> None:
    prompts = {f"p{count}": random_tokens(count, count) for count in (1, 50, 130)}
    one = Engine(engine_config(scaled))
    in_parts = Engine(engine_config(scaled, kv_parts=2))
    assert in_parts.pool.shape[1] == 2 * one.pool.shape[1]
    assert two_ranks.engine.pool.dtype == two_ranks.follower(1).pool.dtype == torch.float8_e4m3fn
    for name, prompt in prompts.items():
        expected = greedy(one, name, prompt)
        assert greedy(in_parts, name, prompt) == expected
        assert two_ranks.call(lambda engine, name=name, prompt=prompt: greedy(engine, name, prompt)) == expected


def test_blocks_hold_elements_alone(llama3: Path) -> None:
    config = read_model_config(llama3, "bfloat16")
    layout, usual = KVCacheLayout.of(config, 16, kv_dtype="fp8"), KVCacheLayout.of(config, 16)
    assert layout == KVCacheLayout.of(config, 16, kv_dtype="fp8_e4m3")
    assert layout.dtype == torch.float8_e4m3fn
    assert layout.block_shape == usual.block_shape
    assert 2 * layout.block_bytes == usual.block_bytes
    assert row_bytes(128, "fp8") == 128
    assert 2 * kv_bytes_per_token(config, "fp8") == kv_bytes_per_token(config)
    assert [kv_cache_dtype(config, asked) for asked in ("fp8", "fp8_e4m3")] == ["fp8", "fp8"]
