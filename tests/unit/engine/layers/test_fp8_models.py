"""FP8 models as computed on GPUs, compared with their dequantised versions; and logged reasons for dequantising."""

import logging
from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import ScalingType

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.checkpoint.stored_quantization import StoredQuantization
from baton.engine.checkpoint.weights import Weights
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.engine import Engine
from baton.engine.layers import experts as expert_layers
from baton.engine.layers.fp8_tokens.quantise import E4M3
from baton.engine.layers.linear import load_fused, load_partial
from baton.engine.layers.weights import fp8_weight as fp8
from baton.engine.layers.weights.fp8_weight import BlockScaledWeight, Fp8Products, products_of
from baton.engine.parallel.tensor_shard import TensorShard
from tests.checkpoints import make_checkpoint
from tests.paged_model import CPU, PagedModel
from tests.unit.engine.emulation.fp8_emulation import HOPPER, EmulatedFp8
from tests.unit.engine.fp8_writer import FORMATS, Stored, write_fp8
from tests.unit.engine.test_models import random_tokens

WIDE = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64, "moe_intermediate_size": 128}
LATENT = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 128,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "moe_intermediate_size": 64,
}


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> EmulatedFp8:
    return EmulatedFp8.installed(monkeypatch)


@pytest.fixture(scope="module")
def by_name(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Stored]:
    """Factory of checkpoints whose sizes FP8 products support."""
    made: dict[tuple[str, str], Stored] = {}

    def make(architecture: str, fmt: str) -> Stored:
        if (architecture, fmt) not in made:
            directory = tmp_path_factory.mktemp(f"{architecture}-{fmt}")
            sizes = LATENT if architecture == "deepseek-v3" else WIDE
            source = make_checkpoint(architecture, directory / "source", **sizes)
            made[architecture, fmt] = write_fp8(source, directory, FORMATS[fmt])
        return made[architecture, fmt]

    return make


@pytest.mark.parametrize(
    ("architecture", "fmt"),
    [
        ("qwen3", "channel"),
        ("llama-biased", "tensor"),
        ("qwen3", "blocks"),
        ("qwen3-moe", "channel"),
        ("qwen3-moe", "blocks"),
        ("deepseek-v3", "channel"),
        ("deepseek-v3", "blocks"),
    ],
)
def test_logits_stay_near_those_of_the_dequantised_model(
    architecture: str,
    fmt: str,
    by_name: Callable[[str, str], Stored],
    emulated: EmulatedFp8,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(expert_layers, "_is_faster_grouped", lambda weight: weight.dtype == E4M3)
    stored, tokens = by_name(architecture, fmt), {"s": random_tokens(60, 3)}
    exact = PagedModel(stored.exact, dtype="bfloat16").step(tokens)["s"]
    with caplog.at_level(logging.INFO, "baton.engine.checkpoint.weights"):
        near = PagedModel(stored.fp8).step(tokens)["s"]
    errors = (near - exact).norm(dim=1) / exact.norm(dim=1)
    assert exact.std() > 0.5
    assert 5e-3 < errors.median() < 0.3  # random models are sensitive; a median, since routing may change
    kinds = set(emulated.recipes)
    if fmt == "blocks":  # keys and values of 128 rows each begin with a block
        assert kinds == {ScalingType.BlockWise128x128}
    else:
        assert kinds == {ScalingType.RowWise}
    is_sparse = architecture in ("qwen3-moe", "deepseek-v3")
    assert bool(emulated.groups) == (is_sparse and fmt != "blocks")
    messages = [record.getMessage() for record in caplog.records if "FP8" in record.getMessage()]
    assert len(messages) == int(is_sparse and fmt == "blocks")
    assert all("no grouped product of experts with block scales" in each for each in messages)


def test_a_model_runs_with_torch_products(
    by_name: Callable[[str, str], Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not emulated: torch supports products with row scales on CPUs."""
    monkeypatch.setattr(fp8, "products_on", lambda device: HOPPER)
    stored, tokens = by_name("qwen3", "channel"), {"s": random_tokens(60, 3)}
    near, exact = (PagedModel(path, dtype="bfloat16").step(tokens)["s"] for path in (stored.fp8, stored.exact))
    errors = (near - exact).norm(dim=1) / exact.norm(dim=1)
    assert 5e-3 < errors.median() < 0.15


@pytest.mark.parametrize(
    ("fmt", "dtype", "found", "why"),
    [
        ("weights-alone", torch.bfloat16, HOPPER, "quantises only weights to FP8"),
        ("channel", torch.float32, HOPPER, "FP8 products need dtype bfloat16"),
        ("channel", torch.bfloat16, Fp8Products(), "compute capability 8.9, 9 or 10, but the device is cpu"),
        ("blocks-24x20", torch.bfloat16, HOPPER, "need blocks of 128 x 128, not 24 x 20"),
        ("blocks", torch.bfloat16, Fp8Products(of_rows=True), "compute capability 9, and CUDA 12.9"),
    ],
)
def test_the_reason_for_dequantising_is_logged(
    fmt: str,
    dtype: torch.dtype,
    found: Fp8Products,
    why: str,
    by_name: Callable[[str, str], Stored],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(fp8, "products_on", lambda device: found)
    config = read_model_config(by_name("qwen3", fmt).fp8)
    weights = Weights(by_name("qwen3", fmt).fp8, dtype, CPU, stored_quantization=config.stored_quantization)
    assert why in reason(weights, config, caplog)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ((slice(None), slice(64, 192)), "must be whole blocks of 128"),
        ((slice(None), slice(0, 192)), "must be whole blocks of 128"),
        ((slice(16, 272), slice(128, 256)), None),
    ],
)
def test_column_shards_must_be_whole_blocks(
    part: tuple[slice, slice],
    why: str | None,
    by_name: Callable[[str, str], Stored],
    emulated: EmulatedFp8,
    caplog: pytest.LogCaptureFixture,
) -> None:
    del emulated
    config = read_model_config(by_name("qwen3", "blocks").fp8)
    weights = Weights(
        by_name("qwen3", "blocks").fp8, torch.bfloat16, CPU, stored_quantization=config.stored_quantization
    )
    stored = weights.peek("model.layers.0.mlp.gate_proj.weight", 384, 256, part=part)
    with caplog.at_level(logging.INFO, "baton.engine.checkpoint.weights"):
        made = fp8.fp8_weight(weights, [stored])
    assert (made is None) == (why is not None)
    assert why is None or why in caplog.text


def test_odd_sizes_and_mixed_dtypes_are_dequantised(
    by_name: Callable[[str, str], Stored], emulated: EmulatedFp8, caplog: pytest.LogCaptureFixture
) -> None:
    del emulated
    path = by_name("qwen3", "channel").fp8
    weights = Weights(path, torch.bfloat16, CPU, stored_quantization=StoredQuantization())
    name = "model.layers.0.mlp.gate_proj.weight"
    with caplog.at_level(logging.INFO, "baton.engine.checkpoint.weights"):
        odd = weights.peek(name, 384, 256, part=(slice(0, 24),))
        assert fp8.fp8_weight(weights, [odd]) is None
        plain = weights.peek("model.embed_tokens.weight", 320, 256)
        assert fp8.fp8_weight(weights, [weights.peek(name, 384, 256), plain]) is None
        assert fp8.fp8_weight(weights, [plain]) is None
    assert "must be multiples of 16" in caplog.text
    assert "some matrices of a fused product are in FP8" in caplog.text
    assert len([record for record in caplog.records if "dequantised" in record.getMessage()]) == 2


def test_sharded_products_add_up(by_name: Callable[[str, str], Stored], emulated: EmulatedFp8) -> None:
    """Two ranks' columns of one weight, and their rows of another, in FP8."""
    del emulated
    path = by_name("qwen3", "blocks").fp8
    config = read_model_config(path)
    weights = Weights(path, torch.bfloat16, CPU, stored_quantization=config.stored_quantization)
    x, name = torch.randn(8, 256, generator=torch.Generator().manual_seed(4)).bfloat16(), "model.layers.0.self_attn"
    whole = load_partial(weights, f"{name}.o_proj", 256, 256, slice(None), TensorShard())(x)
    halves = [
        load_partial(weights, f"{name}.o_proj", 256, 256, TensorShard(rank, 2).of(256), TensorShard(rank, 2))
        for rank in range(2)
    ]
    assert all(isinstance(half.form, BlockScaledWeight) for half in halves)
    added = sum(half(x[:, 128 * rank : 128 * (rank + 1)]).float() for rank, half in enumerate(halves))
    torch.testing.assert_close(added, whole.float(), atol=0.02, rtol=0.02)
    names, sizes = [f"{name}.{part}_proj" for part in "qkv"], [256, 128, 128]
    both = load_fused(weights, names, 256, sizes)(x)
    rows = [[TensorShard(rank, 2).of(size) for size in sizes] for rank in range(2)]
    first, second = (load_fused(weights, names, 256, sizes, rows=each) for each in rows)
    assert isinstance(first.form, BlockScaledWeight)
    assert not first.form.has_whole_blocks  # 64 rows of keys, then 64 of values
    parts = [
        torch.cat(pair, 1) for pair in zip(*(each(x).split([128, 64, 64], 1) for each in (first, second)), strict=True)
    ]
    torch.testing.assert_close(torch.cat(parts, 1).float(), both.float(), atol=0.02, rtol=0.02)


def test_products_of_returns_fp8_only_if_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that dequantise the same checkpoint compute different KV, so fingerprints must differ."""
    rows, in_blocks = StoredQuantization(), StoredQuantization(block=(128, 128))
    assert products_of(rows, "bfloat16", CPU) is None
    monkeypatch.setattr(fp8, "products_on", lambda device: HOPPER)
    assert products_of(rows, "bfloat16", CPU) == products_of(in_blocks, "bfloat16", CPU) == "fp8"
    assert products_of(None, "bfloat16", CPU) is None
    assert products_of(rows, "float32", CPU) is None
    assert products_of(StoredQuantization(quantises_tokens=False), "bfloat16", CPU) is None
    monkeypatch.setattr(fp8, "products_on", lambda device: Fp8Products(of_rows=True))
    assert products_of(in_blocks, "bfloat16", CPU) is None


def test_engines_that_compute_in_fp8_have_a_different_fingerprint(
    by_name: Callable[[str, str], Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(model=str(by_name("qwen3", "channel").fp8), kv_cache_memory_bytes=1 << 21)
    dequantised = Engine(config)
    assert Engine(config).fingerprint == dequantised.fingerprint
    monkeypatch.setattr(fp8, "products_on", lambda device: HOPPER)
    assert Engine(config).fingerprint != dequantised.fingerprint


def reason(weights: Weights, config: ModelConfig, caplog: pytest.LogCaptureFixture) -> str:
    """Return the logged reason why a product is not in FP8."""
    name = "model.layers.0.mlp.gate_proj.weight"
    stored = weights.peek(name, config.intermediate_size, config.hidden_size)
    with caplog.at_level(logging.INFO, "baton.engine.checkpoint.weights"):
        assert fp8.fp8_weight(weights, [stored]) is None
        assert fp8.fp8_weight(weights, [stored]) is None
    (record,) = caplog.records
    return record.getMessage()
