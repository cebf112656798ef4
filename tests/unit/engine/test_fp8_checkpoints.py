"""FP8 checkpoints on a CPU: dequantised values, whole and sharded, and errors for invalid ones."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton.engine.attention.factory import attention_for
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel
from baton.engine.models import load_model
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.oracle import greedy, load_oracle
from tests.paged_model import CPU, PagedModel
from tests.unit.engine.experts.test_expert_group import alone
from tests.unit.engine.experts.test_expert_group import make_requests as make_group_requests
from tests.unit.engine.fp8_writer import FORMATS, Stored, blocks, write_fp8
from tests.unit.engine.group_rig import Ranks
from tests.unit.engine.parallel.test_tensor_parallel import ATOL, Rank0PagedModel, make_requests, mixed_steps, serve
from tests.unit.engine.tensor_rig import TensorRig
from tests.unit.engine.test_load_memory import NUM_LAYERS, PROGRAM, SIZES, repeat_layer
from tests.unit.engine.test_models import oracle_logits, random_tokens

# Sizes that are not multiples of 128, and with which the shards of two ranks begin within a block.
UNEVEN = {"hidden_size": 192, "intermediate_size": 320}
NAME = "model.layers.1.self_attn.k_proj.weight"
CASES = [
    slow_case(("qwen3", "blocks", UNEVEN)),
    slow_case(("qwen3", "blocks-24x20", {})),
    slow_case(("llama-biased", "channel", {})),
    slow_case(("qwen2", "tensor", {})),
    ("llama3", "plain", {}),
    slow_case(("mistral", "plain-inverse", {})),
    slow_case(("qwen2", "weights-alone", {})),
    slow_case(("qwen3-moe", "blocks", {"hidden_size": 160, "moe_intermediate_size": 144})),
    ("qwen3-moe", "channel", {}),
    slow_case(("mixtral", "tensor", {})),
    slow_case(("deepseek-v2-lite", "blocks-24x20", {})),
    ("deepseek-v3", "blocks", {"hidden_size": 160, "kv_lora_rank": 144, "moe_intermediate_size": 144}),
    slow_case(("deepseek-v3", "channel", {})),
    slow_case(("phi3", "blocks-24x20", {})),
    slow_case(("glm4", "channel", {})),
    slow_case(("minimax-m2", "blocks-24x20", {})),
    slow_case(("qwen3-next", "blocks-24x20", {})),
    slow_case(("qwen3.5", "channel", {})),
    slow_case(("nemotron-h", "blocks-24x20", {})),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    architecture, fmt, sizes = request.param
    directory = tmp_path_factory.mktemp(f"{architecture}-{fmt}")
    return write_fp8(make_checkpoint(architecture, directory / "source", **sizes), directory, FORMATS[fmt])


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    directory = tmp_path_factory.mktemp("qwen3")
    return write_fp8(make_checkpoint("qwen3", directory / "source"), directory, blocks(32, 32))


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
    for name, logits in PagedModel(stored.fp8, dtype="float32").step(prompts).items():
        expected = oracle_logits(oracle, prompts[name])
        assert expected.std() > 0.5
        torch.testing.assert_close(logits, expected, atol=ATOL, rtol=0)
    outputs = PagedModel(stored.fp8, dtype="float32").greedy(prompts, 32)
    for name, tokens in prompts.items():
        assert outputs[name] == greedy(oracle, tokens, 32, outputs[name])
    assert len(set().union(*outputs.values())) > 8


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_bfloat16_and_int8_weights_equal_those_of_the_exact_checkpoint(
    stored: Stored, quantization: str | None
) -> None:
    if quantization is not None and not torch.cpu._is_vnni_supported():
        pytest.skip("products in int8 need VNNI")
    prompts = {"s": random_tokens(40, 3)}
    assert read_model_config(stored.fp8).dtype == "bfloat16"
    models = (
        PagedModel(path, dtype="bfloat16", quantization=quantization) for path in (stored.fp8, stored.exact)
    )  # fmt: skip
    ours, plain = (model.step(prompts)["s"] for model in models)
    assert torch.equal(ours, plain)


def test_two_tensor_parallel_ranks_agree_with_one(stored: Stored, rigs: Callable[..., TensorRig]) -> None:
    one = Engine(EngineConfig(model=str(stored.fp8), dtype="float32", kv_cache_memory_bytes=1 << 22))
    expected = serve(one, make_requests(4, 0.0))
    rig = rigs(stored.fp8, 2, kv_cache_memory_bytes=1 << 23)
    rank0 = Rank0PagedModel(stored.fp8, rig)
    logits = rig.call(lambda _: mixed_steps(rank0))
    for name, whole in mixed_steps(PagedModel(stored.fp8, dtype="float32")).items():
        torch.testing.assert_close(logits[name], whole, atol=ATOL, rtol=0)
    assert rig.call(lambda engine: serve(engine, make_requests(4, 0.0))) == expected


def test_an_expert_parallel_group_agrees_with_one_rank(tmp_path: Path) -> None:
    """Experts are located with their scales at the start, and read once ranks have joined."""
    source = make_checkpoint("qwen3-moe", tmp_path / "source")
    model = write_fp8(source, tmp_path, FORMATS["blocks-24x20"]).fp8
    group = Ranks(model, ["rank-0", "rank-1"], dtype="float32", enable_prefix_caching=False)
    try:
        group["rank-0"].add(*make_group_requests(1, 4))
        group["rank-0"].wait_for_all()
        expected = alone(model, make_group_requests(1, 4), "float32")
        assert {name: group["rank-0"].outputs[name] for name in expected} == expected
    finally:
        group.close()


def test_fused_experts_have_blocks_across_gate_and_up(tmp_path: Path) -> None:
    """64 rows in blocks of 24: the second block holds the last rows of gate and the first of up."""
    source = make_checkpoint("qwen3-moe", tmp_path / "source")
    rewrite(source, fuse)
    for name in ("blocks-24x20", "channel"):
        stored = write_fp8(source, tmp_path / name, FORMATS[name])
        assert load_file(stored.fp8 / "model.safetensors")["model.layers.0.mlp.experts.gate_up_proj"].dim() == 3
        prompts = {"s": random_tokens(40, 3)}
        ours, plain = (PagedModel(each, dtype="float32").step(prompts)["s"] for each in (stored.fp8, stored.exact))
        assert torch.equal(ours, plain)


def test_transformers_reads_block_scales_as_the_engine_does(tmp_path: Path) -> None:
    """Its own FP8 reader dequantises too if there is no GPU."""
    sizes = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64, "tie_word_embeddings": False}
    stored = write_fp8(make_checkpoint("qwen3", tmp_path / "source", **sizes), tmp_path, FORMATS["blocks"])
    oracle = load_oracle(stored.fp8)
    tokens = random_tokens(50, 7)
    expected = oracle_logits(oracle, tokens)
    assert expected.std() > 0.5
    logits = PagedModel(stored.fp8, dtype="float32").step({"s": tokens})["s"]
    torch.testing.assert_close(logits, expected, atol=ATOL, rtol=0)


@pytest.fixture(scope="module")
def small_and_large(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = []
    for name, sizes in (("small", {}), ("large", SIZES)):
        directory = tmp_path_factory.mktemp(name)
        source = make_checkpoint("llama2", directory / "source", **sizes)
        made.append(write_fp8(source, directory, FORMATS["blocks"]).fp8)
    repeat_layer(made[1], NUM_LAYERS)
    return made


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(("quantization", "most"), [slow_case("", 2.7), slow_case("int8", 1.5)])
def test_no_copy_in_fp32_is_made(small_and_large: list[Path], quantization: str, most: float) -> None:
    """Peak over the files' bytes: 2 for bfloat16 or 1 for int8, and the tensors being converted."""
    if quantization and not torch.cpu._is_vnni_supported():
        pytest.skip("products in int8 need VNNI")
    command = [sys.executable, "-c", PROGRAM, *map(str, small_and_large), quantization]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    before, highest = map(int, done.stdout.split())
    stored = (small_and_large[1] / "model.safetensors").stat().st_size
    assert stored > 100e6
    assert (highest - before) * 1024 < most * stored


def test_the_reason_for_dequantising_is_logged_once(qwen3: Stored, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "baton.engine.checkpoint.weights"):
        PagedModel(qwen3.fp8)
    messages = [record.getMessage() for record in caplog.records if "FP8" in record.getMessage()]
    assert len(messages) == 1
    assert messages[0].startswith("weights in FP8 are dequantised to bfloat16: FP8 products need an NVIDIA GPU")
    assert messages[0].endswith("but the device is cpu")


def test_progress_counts_scales(qwen3: Stored) -> None:
    config = read_model_config(qwen3.fp8)
    reported: list[float] = []
    load_model(qwen3.fp8, config, CPU, attention_for(config, 16, CPU), reported.append)
    assert reported == sorted(reported)
    assert reported[-1] == 1.0
    assert reported[-2] > 0.99


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: t.pop(f"{NAME}_scale_inv"), InvalidCheckpoint, f"{NAME} is in FP8, but there is no {NAME}_sc"),
        (
            lambda t: t.update({f"{NAME}_scale_inv": torch.ones(2, 3)}),
            InvalidCheckpoint,
            rf"{NAME}_scale_inv has shape \[2, 3\], but the config needs \[2, 2\]",
        ),
        (
            lambda t: t.update({f"{NAME}_scale_inv": torch.ones(2, 2).to(torch.float8_e4m3fn)}),
            UnsupportedModel,
            "float8_e4m3fn, which is not supported for scales",
        ),
        (
            lambda t: t.update({f"{NAME}_scale_inv": torch.ones(2, 2, dtype=torch.uint8).view(torch.float8_e8m0fnu)}),
            UnsupportedModel,
            "dtype F8_E8M0, which is not supported",
        ),
        (lambda t: t.update({NAME: t[NAME][:3]}), InvalidCheckpoint, rf"{NAME} has shape \[3, 64\]"),
        (
            lambda t: t.update({"model.norm.weight": t["model.norm.weight"].to(torch.float8_e4m3fn)}),
            InvalidCheckpoint,
            r"model\.norm\.weight is in FP8, but is not a matrix",
        ),
        (
            lambda t: t.update({"model.layers.1.self_attn.phantom_scale": torch.ones(1)}),
            InvalidCheckpoint,
            r"has no use for: model\.layers\.1\.self_attn\.phantom_scale",
        ),
    ],
)  # fmt: skip
def test_invalid_tensors_are_named(
    qwen3: Stored, tmp_path: Path, change: Callable[[dict[str, Tensor]], Any], error: type[Exception], message: str
) -> None:
    broken = copy(qwen3.fp8, tmp_path / "broken")
    rewrite(broken, change)
    with pytest.raises(error, match=message):
        PagedModel(broken)


def test_fp8_without_a_quantization_config_is_refused(qwen3: Stored, tmp_path: Path) -> None:
    plain = copy(qwen3.fp8, tmp_path / "plain")
    (plain / "config.json").write_bytes((qwen3.exact / "config.json").read_bytes())
    with pytest.raises(UnsupportedModel, match=r"q_proj\.weight is in FP8, but the config has no quantization_config"):
        PagedModel(plain)


def test_a_config_without_a_dtype_means_bfloat16(qwen3: Stored, tmp_path: Path) -> None:
    """Tensors do not determine it: matrices are in FP8, scales in fp32, and norms may have any dtype."""
    unnamed = copy(qwen3.fp8, tmp_path / "unnamed")
    config = json.loads((unnamed / "config.json").read_text())
    del config["dtype"]
    (unnamed / "config.json").write_text(json.dumps(config))
    assert read_model_config(unnamed).dtype == "bfloat16"
    assert read_model_config(unnamed, "float32").dtype == "float32"


def test_scales_per_tensor_or_row_must_have_a_listed_shape(tmp_path: Path) -> None:
    source = make_checkpoint("qwen3", tmp_path / "source")
    stored = write_fp8(source, tmp_path, FORMATS["channel"])
    expected = PagedModel(stored.fp8).step({"s": random_tokens(20, 3)})["s"]
    rewrite(stored.fp8, lambda t: t.update({f"{NAME}_scale": t[f"{NAME}_scale"][:, 0].clone()}))
    assert torch.equal(PagedModel(stored.fp8).step({"s": random_tokens(20, 3)})["s"], expected)
    rewrite(stored.fp8, lambda t: t.update({f"{NAME}_scale": torch.ones(2, 64)}))
    with pytest.raises(InvalidCheckpoint, match=r"\[64, 1\] or \[64\] or \[1, 1\] or \[1\] or \[\]"):
        PagedModel(stored.fp8)


def copy(source: Path, target: Path) -> Path:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def rewrite(directory: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Changes a checkpoint's tensors in place."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def fuse(tensors: dict[str, Tensor]) -> None:
    """Experts as transformers 5 has them in memory."""
    for name in [name for name in tensors if name.endswith("experts.0.gate_proj.weight")]:
        prefix = name.removesuffix(".0.gate_proj.weight")
        gate, up, down = (
            torch.stack([tensors.pop(f"{prefix}.{expert}.{part}_proj.weight") for expert in range(8)])
            for part in ("gate", "up", "down")
        )
        tensors[f"{prefix}.gate_up_proj"], tensors[f"{prefix}.down_proj"] = torch.cat([gate, up], dim=1), down
