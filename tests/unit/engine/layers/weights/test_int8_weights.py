"""Int8 weights: accuracy, and independence of a token's result from the rest of the batch."""

import random
from pathlib import Path

import pytest
import torch

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import UnsupportedModel
from baton.engine.kv.fingerprint import compatibility_fingerprint
from baton.engine.layers.linear import Linear
from baton.engine.layers.weights import int8_weight as int8_module
from baton.engine.layers.weights import panel_weight
from baton.engine.layers.weights.int8_weight import Int8Weight, check_quantization, int8_weight
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint, weights_revision
from tests.paged_model import CPU, PagedModel
from tests.unit.engine.perplexity import BUNDLED, logits_of, perplexity

pytestmark = pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="products in int8 need VNNI")


@pytest.fixture(scope="module", params=["qwen2", "llama3", "qwen3-moe", "deepseek-v3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp(request.param) / "model")


def random_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=count)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bundled_models_perplexity_hardly_changes(dtype: str) -> None:
    usual = perplexity(dtype=dtype)
    assert usual < 200  # the model knows such texts
    assert perplexity(dtype=dtype, quantization="int8") == pytest.approx(usual, rel=0.01)
    assert perplexity(dtype=dtype, quantization="int8", kv_dtype="int8") == pytest.approx(usual, rel=0.01)


def test_logits_stay_near_those_of_exact_weights(model: Path) -> None:
    tokens = random_tokens(200, 1)
    exact, near = (logits_of(PagedModel(model, quantization=each), tokens, 70) for each in (None, "int8"))
    assert exact.std() > 0.5
    errors = (near - exact).norm(dim=1) / exact.norm(dim=1)
    assert 1e-3 < errors.median() < 0.1  # a median: tokens routed to other experts have other logits


def test_the_tokens_of_a_sequence_do_not_depend_on_the_batch(model: Path) -> None:
    """The chunks of its prompt do not change them either."""
    alone = PagedModel(model, quantization="int8").greedy({"a": random_tokens(60, 2)}, 12)["a"]
    others = {name: random_tokens(length, length) for name, length in (("b", 3), ("c", 90), ("d", 41))}
    together = PagedModel(model, quantization="int8").greedy({"a": random_tokens(60, 2), **others}, 12)
    assert together["a"] == alone


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 64, 48), (3, 1, 5), (40, 100, 7), (8, 512, 1100), (140, 9000, 40)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_products_equal_those_of_the_rounded_numbers(
    dtype: torch.dtype, shape: tuple[int, int, int], has_bias: bool
) -> None:
    """Compared with double-precision sums of the same bytes."""
    num_tokens, inner, outer = shape
    draw = torch.Generator().manual_seed(inner)
    weight = torch.randn(outer, inner, generator=draw).to(dtype)
    weight[0] = 0
    bias = torch.randn(outer, generator=draw).to(dtype) if has_bias else None
    x = (torch.randn(num_tokens, inner, generator=draw) * torch.rand(num_tokens, 1, generator=draw)).to(dtype)

    def rounded(rows: torch.Tensor) -> torch.Tensor:
        scales = rows.double().abs().amax(1, keepdim=True) / 127
        return (rows.double() / scales.clamp(min=1e-30)).round() * scales

    expected = rounded(x) @ rounded(weight).T + (0 if bias is None else bias.double())
    before = weight.clone()
    linear = Linear(weight, bias, quantization="int8")
    result = linear(x)
    assert torch.equal(weight, before)  # the weight may also be an embedding
    assert result.dtype == dtype
    # One number in a thousand may be rounded the other way where it lies between two.
    error = (result.double() - expected).square().mean().sqrt()
    assert error < (2e-3 if dtype == torch.float32 else 6e-3) * expected.square().mean().sqrt() + 1e-9
    assert torch.equal(torch.cat([linear(row[None]) for row in x]), result)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_non_finite_tokens_stay_non_finite(dtype: torch.dtype) -> None:
    x = torch.ones(2, 32, dtype=dtype)
    x[1, 3] = torch.nan
    result = int8_weight(torch.eye(32, dtype=dtype))(x)
    torch.testing.assert_close(result[0], torch.ones(32, dtype=dtype))
    assert result[1].isnan().all()


def test_all_products_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native ones to the bit; oneDNN's round twice."""
    products = pytest.importorskip("baton.engine.native.products", reason="nothing was compiled")
    weight = torch.randn(50, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    x = torch.randn(9, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    results = []
    for instructions in products.instruction_sets():
        monkeypatch.setattr(panel_weight, "product_instructions", lambda chosen=instructions: chosen)
        results.append(int8_weight(weight)(x))
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], Int8Weight(weight)(x), rtol=2**-6, atol=2**-6)


def test_the_quantization_option_selects_int8_weights(model: Path) -> None:
    tokens = random_tokens(50, 3)
    engine = Engine(EngineConfig(model=str(model), quantization="int8", kv_cache_memory_bytes=1 << 21))
    plain = PagedModel(model, quantization="int8")
    plain_config = read_model_config(model, "auto")
    assert engine.fingerprint != compatibility_fingerprint(model, plain_config, 16, weights_revision(model))
    batch = plain.batch(["a"], [tokens])
    expected = plain.model.forward(batch, plain.pool.clone())
    assert torch.equal(engine.runner.model.forward(batch, plain.pool), expected)


def test_unsupported_hardware_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_quantization(None, torch.device("cuda"))
    check_quantization("int8", CPU)
    with pytest.raises(UnsupportedModel, match="is for CPUs"):
        check_quantization("int8", torch.device("cuda"))
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    monkeypatch.setattr(panel_weight, "product_instructions", lambda: "avx2")
    with pytest.raises(UnsupportedModel, match=r"of a weight \[8, 6\] in torch.bfloat16 needs .* multiple of 4"):
        int8_weight(torch.ones(8, 6).bfloat16())
    with pytest.raises(UnsupportedModel, match=r"\[8, 4\] in torch.float32"):
        int8_weight(torch.ones(8, 4))
    monkeypatch.setattr(int8_module, "product_instructions", lambda: None)
    with pytest.raises(UnsupportedModel, match="or with AVX2 and"):
        PagedModel(BUNDLED, quantization="int8")
