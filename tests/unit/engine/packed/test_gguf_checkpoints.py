"""GGUF files: the dequantised model's logits and tokens, whole, sharded and in several files."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.engine.checkpoint.gguf.directory import checkpoint_directory
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.checkpoint.weight_memory import num_parameters
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import InvalidCheckpoint
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.oracle import greedy, load_oracle
from tests.paged_model import PagedModel
from tests.unit.engine.packed.gguf_writer import Type, Written, write_gguf
from tests.unit.engine.parallel.test_tensor_parallel import ATOL, Rank0PagedModel, make_requests, mixed_steps, serve
from tests.unit.engine.tensor_rig import TensorRig
from tests.unit.engine.test_models import oracle_logits, random_tokens

WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CASES: list[Any] = [
    ("llama2", Type.Q4_K, WIDE, {"down": Type.Q6_K, "token_embd": Type.Q8_0}),
    slow_case(("qwen2", Type.Q5_K, {"hidden_size": 256, "intermediate_size": 512}, {"attn_v": Type.Q8_0})),
    slow_case(("llama3", Type.Q8_0, {"rope_scaling": LLAMA3, "max_position_embeddings": 16384}, {})),
    ("qwen3", Type.Q4_0, {}, {"ffn_up": Type.Q4_1, "ffn_down": Type.Q5_1, "attn_q": Type.Q5_0}),
    slow_case(("mistral", Type.F16, {}, {})),
    slow_case(("llama-linear", Type.BF16, {}, {})),
    slow_case(("llama-biased", Type.Q8_0, {}, {})),
    ("qwen3-moe", Type.Q8_0, {}, {}),
    slow_case(("qwen3-moe", Type.MXFP4, {}, {"token_embd": Type.F32})),
    slow_case(("mixtral", Type.Q4_0, {}, {})),
    slow_case(("qwen2-yarn", Type.F32, {}, {})),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1].name}")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    architecture, kind, sizes, others = request.param
    directory = tmp_path_factory.mktemp(architecture)
    source = make_checkpoint(architecture, directory / "source", **sizes)
    return write_gguf(source, directory / "gguf", kind, others=others)


@pytest.fixture
def model(written: Written, tmp_path: Path) -> Path:
    return checkpoint_directory(written.file, tmp_path / "cache")


@pytest.fixture
def rigs() -> Iterator[Callable[..., TensorRig]]:
    made: list[TensorRig] = []

    def make(*args: Any, **kwargs: Any) -> TensorRig:
        made.append(TensorRig(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_logits_and_tokens_equal_the_oracles(written: Written, model: Path) -> None:
    oracle = load_oracle(written.exact)
    prompts = {"long": random_tokens(70, 11), "short": random_tokens(9, 12)}
    for name, logits in PagedModel(model, dtype="float32").step(prompts).items():
        expected = oracle_logits(oracle, prompts[name])
        assert expected.std() > 0.5
        torch.testing.assert_close(logits, expected, atol=3 * ATOL, rtol=0)
    outputs = PagedModel(model, dtype="float32").greedy(prompts, 24)
    for name, tokens in prompts.items():
        assert outputs[name] == greedy(oracle, tokens, 24, outputs[name])


def test_the_config_is_that_of_the_checkpoint(written: Written, model: Path) -> None:
    ours, theirs = read_model_config(model, "float32"), read_model_config(written.exact, "float32")
    names = ("architecture", "vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
    more = ("intermediate_size", "rms_norm_eps", "max_model_len", "tie_word_embeddings", "qk_norm", "moe", "qkv_bias")
    for name in (*names, *more):
        if name == "architecture" and theirs.architecture == "MistralForCausalLM":
            continue  # a GGUF file says llama
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name)), name
    assert (ours.rope.kind, ours.rope.theta, ours.rope.factor) == (
        theirs.rope.kind,
        theirs.rope.theta,
        theirs.rope.factor,
    )
    assert num_parameters(model, ours) == num_parameters(written.exact, theirs)
    assert ours.eos_token_ids == {2}


def test_two_tensor_parallel_ranks_agree_with_one(
    written: Written, model: Path, rigs: Callable[..., TensorRig]
) -> None:
    one = Engine(EngineConfig(model=str(model), dtype="float32", kv_cache_memory_bytes=1 << 22))
    expected = serve(one, make_requests(4, 0.0))
    rig = rigs(model, 2, kv_cache_memory_bytes=1 << 23)
    rank0 = Rank0PagedModel(model, rig)
    logits = rig.call(lambda _: mixed_steps(rank0))
    for name, whole in mixed_steps(PagedModel(model, dtype="float32")).items():
        torch.testing.assert_close(logits[name], whole, atol=3 * ATOL, rtol=0)
    assert rig.call(lambda engine: serve(engine, make_requests(4, 0.0))) == expected


def test_a_model_may_be_in_several_files(tmp_path: Path) -> None:
    source = make_checkpoint("qwen3", tmp_path / "source")
    whole = write_gguf(source, tmp_path / "whole", Type.Q8_0)
    split = write_gguf(source, tmp_path / "split", Type.Q8_0, max_tensors=7)
    assert split.file.name == "tiny-Q8_0-00001-of-00005.gguf"
    models = [checkpoint_directory(each.file, tmp_path / "cache") for each in (whole, split)]
    third = split.file.with_name("tiny-Q8_0-00003-of-00005.gguf")
    assert checkpoint_directory(third, tmp_path / "cache") == models[1]
    prompt = {"a": random_tokens(40, 1)}
    logits = [PagedModel(each, dtype="float32").step(prompt)["a"] for each in models]
    assert torch.equal(*logits)
    third.unlink()
    with pytest.raises(InvalidCheckpoint, match=f"is one of 5 files, but {third.name} is missing"):
        checkpoint_directory(split.file, tmp_path / "other-cache")
