"""Models whose layers have windows, sinks and soft caps: prefixes from the cache, KV and weights in int8."""

import random
from pathlib import Path

import pytest
import torch

from baton.engine.attention.base import AttentionBackend
from baton.engine.attention.torch_reference import TorchAttention
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.engine import Engine
from baton.engine.models.causal_lm import CausalLM
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.paged_model import PagedModel

FAMILIES = ("gemma2", "gpt-oss")  # windows of 24 tokens


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp(request.param) / "model")


def random_tokens(count: int) -> list[int]:
    return random.Random(count).choices(range(3, VOCAB_SIZE), k=count)


def greedy(engine: Engine, name: str, prompt: list[int]) -> list[int]:
    """Return the tokens of a request that runs alone."""
    sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    engine.add(Request(RequestId(name), [*prompt], len(prompt), sampling))
    tokens = []
    while engine.has_work:
        tokens += [each.sampled.token_id for each in engine.run(engine.schedule()).outputs if each.sampled is not None]
    engine.check_integrity()
    return tokens


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("hybrid", [False, True])
def test_a_prefix_from_the_cache_gives_the_same_tokens(model: Path, kv_dtype: str, hybrid: bool) -> None:
    config = EngineConfig(
        model=str(model),
        dtype="float32",
        kv_cache_dtype=kv_dtype,
        kv_cache_memory_bytes=1 << 21,
        max_num_batched_tokens=40,
        max_num_seqs=8,
        hybrid_kv_cache=hybrid,
    )
    prompts = [random_tokens(count) for count in (40, 161)]
    expected = [greedy(Engine(config), "cold", prompt) for prompt in prompts]
    engine = Engine(config)
    for turn in range(2):
        for index, prompt in enumerate(prompts):
            assert greedy(engine, f"{turn}-{index}", prompt) == expected[index]
    assert engine.scheduler.num_cached_tokens >= 32 + 160


def test_int8_kv_gives_the_logits_of_the_reference(model: Path) -> None:
    def reference_of(config: ModelConfig, block_size: int) -> AttentionBackend:
        return TorchAttention.for_model(config, block_size)

    tokens, results = random_tokens(150), []
    for attention_of in (None, reference_of):
        paged = PagedModel(model, kv_dtype="int8", attention_of=attention_of)
        parts = [paged.step({"s": tokens[start : start + 50]})["s"] for start in (0, 50, 100)]
        results.append(torch.cat(parts))
    torch.testing.assert_close(*results, atol=2e-2, rtol=0)  # a rounding may tip over


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_rounded_weights_give_similar_logits(model: Path, quantization: str) -> None:
    """Rounding takes other paths than plain weights: fused products are for SiLU without biases only."""
    if quantization == "int8" and not torch.cpu._is_vnni_supported():
        pytest.skip("products in int8 need VNNI")
    prompt = {"s": random_tokens(60)}
    usual = PagedModel(model, dtype="bfloat16").step(prompt)["s"]
    found = PagedModel(model, dtype="bfloat16", quantization=quantization).step(prompt)["s"]
    similarity = torch.nn.functional.cosine_similarity(found.flatten(), usual.flatten(), dim=0)
    assert similarity > {"int8": 0.95, "int4": 0.7}[quantization]


def test_layers_that_do_not_rotate_have_no_rotary_table(tmp_path: Path) -> None:
    """A context of ten million tokens, as in Llama 4 Scout, would make one of 5 GB."""
    model = PagedModel(make_checkpoint("llama4", tmp_path / "model")).model
    assert isinstance(model, CausalLM)
    assert [len(rotary.table) > 0 for rotary in model.rotary] == [True, True, True, False]
