"""Checkpoints with packed weights: the dequantised model's logits and tokens, whole and sharded."""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.checkpoint.packed.completeness import check_packed
from baton.engine.checkpoint.weight_memory import num_parameters, weights_bytes
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.oracle import greedy, load_oracle
from tests.paged_model import PagedModel
from tests.unit.engine.experts.test_expert_group import alone
from tests.unit.engine.experts.test_expert_group import make_requests as make_group_requests
from tests.unit.engine.group_rig import Ranks
from tests.unit.engine.packed import compressed_writer
from tests.unit.engine.packed.packed_writer import FORMATS, Stored, write_packed
from tests.unit.engine.parallel.test_tensor_parallel import ATOL, Rank0PagedModel, make_requests, mixed_steps, serve
from tests.unit.engine.tensor_rig import TensorRig
from tests.unit.engine.test_fp8_checkpoints import copy, rewrite
from tests.unit.engine.test_models import oracle_logits, random_tokens

MODULE = "model.layers.1.self_attn.k_proj"
CASES = [
    ("llama3", "gptq"),
    slow_case(("qwen2", "gptq-sym")),
    slow_case(("mistral", "gptq-v2")),
    ("qwen3", "gptq-order"),
    slow_case(("llama-biased", "gptq-8")),
    slow_case(("qwen2", "gptq-whole")),
    slow_case(("qwen3", "gptq-mixed")),
    ("llama3", "awq"),
    slow_case(("qwen3", "awq-plain")),
    slow_case(("llama3", "auto-round")),
    slow_case(("qwen2", "auto-round-awq")),
    ("qwen3-moe", "gptq-order"),
    slow_case(("qwen3-moe", "awq")),
    slow_case(("mixtral", "awq")),
    slow_case(("mixtral", "gptq")),
    slow_case(("deepseek-v3", "gptq-8")),
    slow_case(("llama3", "w4a16")),
    slow_case(("qwen3", "w4a16-asym")),
    ("qwen3", "w4a16-order"),
    slow_case(("qwen2", "w4a16-channel")),
    slow_case(("qwen3-moe", "w8a16")),
    slow_case(("qwen2", "w8a16-asym")),
    slow_case(("llama3", "w8a8")),
    slow_case(("qwen3", "w8a8-asym")),
    slow_case(("llama3", "nvfp4")),
    ("qwen3-moe", "nvfp4"),
    slow_case(("mixtral", "mxfp4")),
    slow_case(("phi4-mini", "gptq-order")),
    slow_case(("phi3", "awq")),
    slow_case(("phi3", "w8a8")),
    slow_case(("glm4", "nvfp4")),
    slow_case(("qwen2-moe", "gptq")),
    slow_case(("nemotron-h", "gptq")),
]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    architecture, fmt = request.param
    directory = tmp_path_factory.mktemp(f"{architecture}-{fmt}")
    sizes = {"q_lora_rank": 32} if architecture == "deepseek-v3" else {}
    source = make_checkpoint(architecture, directory / "source", **sizes)
    return write_packed(source, directory, (FORMATS | compressed_writer.FORMATS)[fmt])


@pytest.fixture(scope="module")
def gptq(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    directory = tmp_path_factory.mktemp("gptq")
    return write_packed(make_checkpoint("qwen3", directory / "source"), directory, FORMATS["gptq-order"])


@pytest.fixture
def rigs() -> Iterator[Callable[..., TensorRig]]:
    made: list[TensorRig] = []

    def make(*args: Any, **kwargs: Any) -> TensorRig:
        made.append(TensorRig(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_logits_and_tokens_equal_the_oracles(stored: Stored) -> None:
    oracle = load_oracle(stored.exact)
    prompts = {"long": random_tokens(70, 11), "short": random_tokens(9, 12)}
    for name, logits in PagedModel(stored.packed, dtype="float32").step(prompts).items():
        expected = oracle_logits(oracle, prompts[name])
        assert expected.std() > 0.5
        torch.testing.assert_close(logits, expected, atol=ATOL, rtol=0)
    outputs = PagedModel(stored.packed, dtype="float32").greedy(prompts, 24)
    for name, tokens in prompts.items():
        assert outputs[name] == greedy(oracle, tokens, 24, outputs[name])


def test_two_tensor_parallel_ranks_agree_with_one(stored: Stored, rigs: Callable[..., TensorRig]) -> None:
    """A row-parallel weight is divided within groups of 32: each rank has 48 of the 96 inner columns."""
    one = Engine(EngineConfig(model=str(stored.packed), dtype="float32", kv_cache_memory_bytes=1 << 22))
    expected = serve(one, make_requests(4, 0.0))
    rig = rigs(stored.packed, 2, kv_cache_memory_bytes=1 << 23)
    rank0 = Rank0PagedModel(stored.packed, rig)
    logits = rig.call(lambda _: mixed_steps(rank0))
    for name, whole in mixed_steps(PagedModel(stored.packed, dtype="float32")).items():
        torch.testing.assert_close(logits[name], whole, atol=ATOL, rtol=0)
    assert rig.call(lambda engine: serve(engine, make_requests(4, 0.0))) == expected


@pytest.mark.parametrize("fmt", ["gptq-order", slow_case("awq")])
def test_an_expert_parallel_group_agrees_with_one_rank(tmp_path: Path, fmt: str) -> None:
    model = write_packed(make_checkpoint("qwen3-moe", tmp_path / "source"), tmp_path, FORMATS[fmt]).packed
    group = Ranks(model, ["rank-0", "rank-1"], dtype="float32", enable_prefix_caching=False)
    try:
        group["rank-0"].add(*make_group_requests(1, 4))
        group["rank-0"].wait_for_all()
        expected = alone(model, make_group_requests(1, 4), "float32")
        assert {name: group["rank-0"].outputs[name] for name in expected} == expected
    finally:
        group.close()


@pytest.mark.parametrize("prefixes", [("language_model.model.", "language_model."), ("model.language_model.", "")])
def test_a_packed_output_layer_of_a_model_for_images(tmp_path: Path, prefixes: tuple[str, str]) -> None:
    fmt = FORMATS["gptq"]
    fmt = replace(fmt, matrices=(*fmt.matrices, "lm_head.weight"))
    packed = write_packed(make_checkpoint("ministral3", tmp_path / "source"), tmp_path, fmt).packed
    config = json.loads((packed / "config.json").read_text())
    image, quantization = tmp_path / "image", config.pop("quantization_config")
    image.mkdir()
    text = {key: value for key, value in config.items() if key not in ("architectures", "dtype")}
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "dtype": "float16", "text_config": text}
    (image / "config.json").write_text(json.dumps(whole | {"quantization_config": quantization}))
    tensors = load_file(packed / "model.safetensors")
    named = {
        prefixes[0] + name.removeprefix("model.") if name.startswith("model.") else prefixes[1] + name: tensor
        for name, tensor in tensors.items()
    }
    save_file(named, image / "model.safetensors")
    tokens = {"s": random_tokens(20, 1)}
    ours, expected = PagedModel(image, dtype="float32"), PagedModel(packed, dtype="float32")
    assert torch.equal(ours.step(tokens)["s"], expected.step(tokens)["s"])
    assert weights_bytes(image, ours.config, None) == weights_bytes(packed, expected.config, None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_tokens_of_a_sequence_do_not_depend_on_the_batch(gptq: Stored, dtype: str) -> None:
    prompts = {str(length): random_tokens(length, length) for length in (3, 41, 60, 90)}
    alone = {name: PagedModel(gptq.packed, dtype=dtype).step({name: prompts[name]})[name] for name in ("60", "3")}
    together = PagedModel(gptq.packed, dtype=dtype).step(prompts)
    if dtype == "float32":
        for name, logits in alone.items():
            torch.testing.assert_close(logits, together[name], atol=1e-4, rtol=0)
    outputs = PagedModel(gptq.packed, dtype=dtype).greedy(prompts, 12)
    assert PagedModel(gptq.packed, dtype=dtype).greedy({"60": prompts["60"]}, 12)["60"] == outputs["60"]


def test_weights_without_native_products_are_dequantised_at_each_use(
    gptq: Stored, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a GPU; one warning says so."""
    tokens = {"a": random_tokens(40, 1)}
    exact = PagedModel(gptq.exact, dtype="float32").step(tokens)["a"]
    native = PagedModel(gptq.packed, dtype="float32").step(tokens)["a"]
    caplog.clear()
    monkeypatch.setattr("baton.engine.layers.weights.grouped_weight.has_native_product", lambda *_: False)
    with caplog.at_level(logging.WARNING):
        plain = PagedModel(gptq.packed, dtype="float32").step(tokens)["a"]
    for logits in (native, plain):
        torch.testing.assert_close(logits, exact, atol=ATOL, rtol=0)
    messages = [record.getMessage() for record in caplog.records if "packed weights" in record.getMessage()]
    assert len(messages) == 1
    assert "they are dequantised to float32 on cpu at each use" in messages[0]


def test_float16_means_bfloat16_with_packed_weights(gptq: Stored) -> None:
    assert read_model_config(gptq.packed).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: t.pop(f"{MODULE}.qweight"), InvalidCheckpoint, f"neither {MODULE}.weight nor {MODULE}.qweight"),
        (lambda t: t.pop(f"{MODULE}.scales"), InvalidCheckpoint, f"{MODULE}.scales is missing"),
        (
            lambda t: t.update({f"{MODULE}.scales": torch.ones(2, 3)}),
            InvalidCheckpoint,
            rf"{MODULE}.scales has shape \[2, 3\], but the config needs \[2, 64\]",
        ),
        (
            lambda t: t.update({f"{MODULE}.qweight": t[f"{MODULE}.qweight"].float()}),
            UnsupportedModel,
            f"{MODULE}.qweight has dtype float32",
        ),
        (
            lambda t: t.update({f"{MODULE}.g_idx": t[f"{MODULE}.g_idx"] + 1}),
            InvalidCheckpoint,
            f"{MODULE}.g_idx names groups other than 0 to 1",
        ),
        (
            lambda t: t.update({f"{MODULE}.phantom": torch.ones(1)}),
            InvalidCheckpoint,
            f"has no use for: {MODULE}.phantom",
        ),
        (lambda t: t.update({f"{MODULE}.bias": torch.ones(64)}), InvalidCheckpoint, f"no use for: {MODULE}.bias"),
    ],
)  # fmt: skip
def test_invalid_tensors_are_named(
    gptq: Stored, tmp_path: Path, change: Callable[[dict[str, Tensor]], Any], error: type[Exception], message: str
) -> None:
    broken = copy(gptq.packed, tmp_path / "broken")
    rewrite(broken, change)
    with pytest.raises(error, match=message):
        PagedModel(broken)


def test_biases_of_zeros_are_ignored(gptq: Stored, tmp_path: Path) -> None:
    biased = copy(gptq.packed, tmp_path / "biased")
    rewrite(biased, lambda t: t.update({f"{MODULE}.bias": torch.zeros(64, dtype=torch.float16)}))
    PagedModel(biased)


def test_parameters_and_memory_are_those_of_the_matrices(stored: Stored) -> None:
    packed, exact = (read_model_config(path) for path in (stored.packed, stored.exact))
    assert num_parameters(stored.packed, packed) == num_parameters(stored.exact, exact)
    plain_bytes = weights_bytes(stored.exact, replace(exact, dtype="bfloat16"), None)
    assert weights_bytes(stored.packed, packed, None) < 0.85 * plain_bytes
    assert weights_bytes(stored.packed, packed, "int8") == weights_bytes(
        stored.exact, replace(exact, dtype="bfloat16"), "int8"
    )


def test_incomplete_matrices_are_found_in_the_headers(gptq: Stored, stored: Stored, tmp_path: Path) -> None:
    for each in (gptq, stored):
        check_packed(each.packed, read_model_config(each.packed).stored_quantization)
    broken = copy(gptq.packed, tmp_path / "broken")
    quantization = read_model_config(broken).stored_quantization
    rewrite(broken, lambda t: t.update({f"{MODULE}.qweight": t[f"{MODULE}.qweight"][:6].clone()}))
    with pytest.raises(InvalidCheckpoint, match=f"{MODULE}.qweight has 48 input columns, which groups of 32 do not"):
        check_packed(broken, quantization)
    rewrite(broken, lambda t: t.pop(f"{MODULE}.scales"))
    with pytest.raises(InvalidCheckpoint, match=f"tensor {MODULE}.scales is missing"):
        check_packed(broken, quantization)
