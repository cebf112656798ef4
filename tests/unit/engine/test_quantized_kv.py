"""KV with one byte per element, int8 or FP8, or half a byte, int4: a request's tokens do not depend on where its KV was
computed, and perplexity changes little.
"""

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.kv.layout import torch_dtype
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.kv_scales import add_kv_scales
from tests.marks import slow_case
from tests.unit.engine.perplexity import perplexity
from tests.unit.engine.tensor_rig import TensorRig

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    made = {family: make_checkpoint(family, directory / family) for family in ("llama3", "deepseek-v3", "qwen3")}
    add_kv_scales(made["qwen3"])
    return made


def engine_config(model: Path, kv_dtype: str, kv_shards: int | None = None) -> EngineConfig:
    return EngineConfig(
        model=str(model), dtype="float32", kv_cache_dtype=kv_dtype, kv_cache_memory_bytes=1 << 21, kv_shards=kv_shards
    )


def random_tokens(count: int) -> list[int]:
    return random.Random(count).choices(range(3, VOCAB_SIZE), k=count)


def greedy(engine: Engine, name: str, prompt: list[int]) -> list[int]:
    """Return the tokens of a request that runs alone."""
    engine.add(Request(RequestId(name), [*prompt], len(prompt), GREEDY))
    tokens = []
    while engine.has_work:
        tokens += [each.sampled.token_id for each in engine.run(engine.schedule()).outputs if each.sampled is not None]
    engine.check_integrity()
    return tokens


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int4"])
@pytest.mark.parametrize("dtype", ["float32", slow_case("bfloat16")])
def test_the_bundled_models_perplexity_hardly_changes(dtype: str, kv_dtype: str) -> None:
    usual = perplexity(dtype=dtype)
    assert usual < 200  # the model knows such texts
    change = {"int8": 0.01, "fp8": 0.015, "int4": 0.06}[kv_dtype]
    assert perplexity(dtype=dtype, kv_dtype=kv_dtype) == pytest.approx(usual, rel=change)


@pytest.mark.parametrize(
    ("family", "kv_dtype"),
    [
        slow_case("llama3", "int8"),
        ("deepseek-v3", "int8"),
        slow_case("llama3", "fp8"),
        slow_case("qwen3", "fp8"),
        ("llama3", "int4"),
    ],
)
def test_a_prefix_from_the_cache_gives_the_same_tokens(
    checkpoints: dict[str, Path], family: str, kv_dtype: str
) -> None:
    config = engine_config(checkpoints[family], kv_dtype)
    prompts = [random_tokens(count) for count in (40, 100, 161)]
    expected = [greedy(Engine(config), "cold", prompt) for prompt in prompts]
    engine = Engine(config)
    for turn in range(2):
        for index, prompt in enumerate(prompts):
            assert greedy(engine, f"{turn}-{index}", prompt) == expected[index]
    assert engine.scheduler.num_cached_tokens >= 32 + 96 + 160


@pytest.mark.parametrize("kv_dtype", [slow_case("int8"), "int4"])
def test_a_preempted_request_gives_the_same_tokens(checkpoints: dict[str, Path], kv_dtype: str) -> None:
    shared = engine_config(checkpoints["llama3"], kv_dtype)
    num_bytes = 28 * Engine(shared).layout.block_bytes  # both prompts fit in, but not their outputs
    config = replace(shared, kv_cache_memory_bytes=num_bytes, enable_prefix_caching=False)
    prompts = {RequestId(f"p{count}"): random_tokens(count) for count in (205, 207)}
    expected = {name: greedy(Engine(config), name, prompt) for name, prompt in prompts.items()}
    engine, found = Engine(config), {name: [] for name in prompts}
    for name, prompt in prompts.items():
        engine.add(Request(name, [*prompt], len(prompt), GREEDY))
    while engine.has_work:
        for output in engine.run(engine.schedule()).outputs:
            if output.sampled is not None:
                found[output.request_id].append(output.sampled.token_id)
    assert engine.scheduler.num_preemptions > 0
    assert found == expected


@pytest.fixture(
    params=[slow_case(("llama3", "int8")), slow_case(("qwen3", "fp8")), ("qwen3", "int4")], ids=["int8", "fp8", "int4"]
)
def one_and_two_ranks(
    request: pytest.FixtureRequest, checkpoints: dict[str, Path]
) -> Iterator[tuple[Path, str, TensorRig]]:
    family, kv_dtype = request.param
    with closing(TensorRig(checkpoints[family], 2, kv_cache_dtype=kv_dtype)) as rig:
        yield checkpoints[family], kv_dtype, rig


def test_kv_shards_and_ranks_give_the_same_tokens(one_and_two_ranks: tuple[Path, str, TensorRig]) -> None:
    model, kv_dtype, two_ranks = one_and_two_ranks
    one = Engine(engine_config(model, kv_dtype))
    in_shards = Engine(engine_config(model, kv_dtype, kv_shards=2))
    assert in_shards.pool.shape[1] == 2 * one.pool.shape[1]
    stored = torch_dtype(kv_dtype)
    assert two_ranks.engine.pool.dtype == two_ranks.follower(1).pool.dtype == stored
    for count in (1, 50, 130):
        name, prompt = f"p{count}", random_tokens(count)
        expected = greedy(one, name, prompt)
        assert greedy(in_shards, name, prompt) == expected
        assert two_ranks.call(lambda engine, name=name, prompt=prompt: greedy(engine, name, prompt)) == expected
