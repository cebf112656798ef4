"""KV in int8: how near a model stays to itself, and that a request's tokens do not depend on where its KV came from."""

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.attention.choice import attention_for
from engine.capacity import num_blocks_in
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import UnsupportedModel
from engine.kv_cache import KVCacheLayout
from engine.kv_dtype import KV_CACHE_DTYPES, kv_cache_dtype, row_bytes
from engine.model_config import read_model_config
from engine.request import Request, RequestId
from engine.sampling_params import SamplingParams
from tests.checkpoints import VOCAB_SIZE, make_checkpoint
from tests.paged_model import CPU, PagedModel
from tests.unit.engine.perplexity import logits_of, perplexity
from tests.unit.engine.tensor_rig import TensorRig


@pytest.fixture(scope="module")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("llama3") / "model")


@pytest.fixture(scope="module", params=["llama3", "deepseek-v3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp(request.param) / "model")


def engine_config(model: Path, kv_parts: int | None = None) -> EngineConfig:
    return EngineConfig(
        model=str(model), dtype="float32", kv_cache_dtype="int8", kv_cache_memory_bytes=1 << 21, kv_parts=kv_parts
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
    assert perplexity(dtype=dtype, kv_dtype="int8") == pytest.approx(usual, rel=0.01)


def test_logits_are_as_near_as_in_bfloat16(model: Path) -> None:
    tokens = random_tokens(300, 1)
    exact = logits_of(PagedModel(model, dtype="float32"), tokens, 70)
    near = logits_of(PagedModel(model, dtype="float32", kv_dtype="int8"), tokens, 70)
    rough = logits_of(PagedModel(model, dtype="bfloat16"), tokens, 70)
    # Of the median token: a token for which another expert is chosen is far off either way.
    errors = [(logits - exact).square().mean(-1).sqrt().median() for logits in (near, rough)]
    assert 1e-4 * exact.std() < errors[0] < errors[1] < 0.03 * exact.std()


def test_a_prefix_from_the_cache_gives_the_same_tokens(model: Path) -> None:
    prompts = [random_tokens(count, count) for count in (40, 100, 161)]
    expected = [greedy(Engine(engine_config(model)), "cold", prompt) for prompt in prompts]
    engine = Engine(engine_config(model))
    for turn in range(2):
        for index, prompt in enumerate(prompts):
            assert greedy(engine, f"{turn}-{index}", prompt) == expected[index]
    assert engine.scheduler.num_cached_tokens >= 32 + 96 + 160


@pytest.fixture
def two_ranks(llama3: Path) -> Iterator[TensorRig]:
    with closing(TensorRig(llama3, 2, kv_cache_dtype="int8")) as rig:
        yield rig


def test_parts_and_ranks_give_the_same_tokens(llama3: Path, two_ranks: TensorRig) -> None:
    prompts = {f"p{count}": random_tokens(count, count) for count in (1, 50, 130)}
    one = Engine(engine_config(llama3))
    in_parts = Engine(engine_config(llama3, kv_parts=2))
    assert in_parts.pool.shape[1] == 2 * one.pool.shape[1]
    assert two_ranks.engine.pool.dtype == two_ranks.follower(1).pool.dtype == torch.int8
    for name, prompt in prompts.items():
        expected = greedy(one, name, prompt)
        assert greedy(in_parts, name, prompt) == expected
        assert two_ranks.call(lambda engine, name=name, prompt=prompt: greedy(engine, name, prompt)) == expected


def test_blocks_hold_their_scales(model: Path) -> None:
    config = read_model_config(model, "bfloat16")
    layout, usual = KVCacheLayout.of(config, 16, kv_dtype="int8"), KVCacheLayout.of(config, 16)
    assert layout.dtype == torch.int8
    assert layout.block_shape == (*usual.block_shape[:-1], usual.block_shape[-1] + 4)
    rows = layout.block_bytes // row_bytes(usual.block_shape[-1], "int8")
    assert layout.block_bytes == rows * (usual.block_shape[-1] + 4)
    assert usual.block_bytes == rows * row_bytes(usual.block_shape[-1], "bfloat16")
    assert num_blocks_in(1 << 20, layout) == (1 << 20) // layout.block_bytes > num_blocks_in(1 << 20, usual)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_there_is_not_is_refused(llama3: Path, dtype: str) -> None:
    config = read_model_config(llama3, dtype)
    assert [kv_cache_dtype(config, asked) for asked in ("auto", dtype, "int8")] == [dtype, dtype, "int8"]
    [other] = {*KV_CACHE_DTYPES} - {"auto", dtype, "int8", "fp8", "fp8_e4m3"}
    for wrong in (other, "fp8_e5m2"):
        with pytest.raises(UnsupportedModel, match=f"kv_cache_dtype '{wrong}' .* only auto, {dtype}, int8, fp8"):
            Engine(EngineConfig(model=str(llama3), dtype=dtype, kv_cache_dtype=wrong))
    with pytest.raises(
        UnsupportedModel, match=f"int8 is for CPUs, and the device is cuda:1: there it is auto, {dtype} or fp8"
    ):
        attention_for(config, 16, torch.device("cuda:1"), "int8")
    assert attention_for(replace(config, num_heads=2), 16, CPU, dtype) is not None
