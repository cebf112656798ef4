"""Products with grouped weights, and rounding to 4 bits when a checkpoint is loaded."""

from pathlib import Path

import pytest
import torch

from baton.engine.checkpoint.packed.grouped_matrix import GroupedMatrix, packed, unpacked
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.layers.linear import Linear
from baton.engine.layers.weights.grouped_weight import GroupedWeight, JoinedWeight, PlainWeight
from baton.engine.layers.weights.int4_weight import group_of, int4_matrix
from tests.checkpoints import make_checkpoint
from tests.paged_model import PagedModel
from tests.unit.engine.perplexity import perplexity
from tests.unit.engine.test_models import random_tokens


@pytest.fixture(autouse=True, params=["native", "torch"])
def _products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setattr("baton.engine.layers.weights.grouped_weight.has_native_product", lambda *_: False)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 64, 48), (5, 256, 100), (40, 2048, 2000)])
def test_products_are_those_of_the_dequantised_weight(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    num_tokens, inner, outer = shape
    linear = Linear(drawn(outer, inner).to(dtype), drawn(outer, seed=1).to(dtype), quantization="int4")
    assert isinstance(linear.form, GroupedWeight)
    exact = linear.form.matrix.dequantised(slice(0, outer), torch.float32)
    x = drawn(num_tokens, inner, seed=2).to(dtype)
    assert linear.bias is not None
    expected = x.double() @ exact.double().T + linear.bias.double()
    result = linear(x)
    assert result.dtype == dtype
    error = (result.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < (1e-5 if dtype == torch.float32 else 6e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype) -> None:
    linear = Linear(drawn(1100, 2048).to(dtype), quantization="int4")
    x = drawn(70, 2048, seed=2).to(dtype)
    whole = linear(x)
    for first, count in ((0, 1), (3, 5), (16, 16), (20, 33)):
        assert torch.equal(linear(x[first : first + count]), whole[first : first + count])


def test_int4_weights_are_the_nearest_of_16_numbers() -> None:
    weight = drawn(300, 256)
    weight[3] = 0
    matrix = int4_matrix(weight, 128)
    assert (matrix.shape, matrix.width, matrix.bits) == ((300, 256), 128, 4)
    restored = matrix.dequantised(slice(0, 300), torch.float32)
    steps = matrix.scales.float().repeat_interleave(128, 1)
    assert ((restored - weight).abs() <= 1.02 * steps).all()
    assert ((restored - weight).abs() <= 0.51 * steps).float().mean() > 0.95  # others are at an end of the range
    assert (restored[3] == 0).all()


def test_groups_are_smaller_if_128_does_not_divide_the_columns() -> None:
    assert [group_of(size) for size in (4096, 96, 48, 100)] == [128, 32, 16, None]
    assert Linear(drawn(8, 100), quantization="int4").form is None


def test_the_bundled_models_perplexity_hardly_changes() -> None:
    usual = perplexity(dtype="float32")
    assert perplexity(dtype="float32", quantization="int4") == pytest.approx(usual, rel=0.1)


@pytest.mark.parametrize("architecture", ["llama3", "qwen3-moe", "qwen2"])
def test_the_option_selects_int4_weights(architecture: str, tmp_path: Path) -> None:
    """The output layer stays plain; fingerprints differ."""
    model = make_checkpoint(architecture, tmp_path / "model", hidden_size=128)
    tokens = {"a": random_tokens(50, 3)}
    plain = PagedModel(model, dtype="float32").step(tokens)["a"]
    ours = PagedModel(model, dtype="float32", quantization="int4").step(tokens)["a"]
    error = (ours - plain).norm(dim=1) / plain.norm(dim=1)
    assert 0.01 < error.median() < 0.8  # the random weights have no outliers that would carry the result
    engines = [
        Engine(EngineConfig(model=str(model), quantization=each, kv_cache_memory_bytes=1 << 21))
        for each in (None, "int4")
    ]
    assert engines[0].fingerprint != engines[1].fingerprint
    assert isinstance(engines[1].runner.model.layers[0].attention.qkv.form, GroupedWeight)  # type: ignore[attr-defined]
    assert not isinstance(engines[1].runner.model.head.form, GroupedWeight)  # type: ignore[attr-defined]


def test_parts_that_are_stored_differently_are_joined() -> None:
    first, second = int4_matrix(drawn(32, 128), 128), int4_matrix(drawn(16, 128, seed=1), 64)
    assert first.can_join(int4_matrix(drawn(8, 128), 128))
    assert not first.can_join(second)
    plain = drawn(8, 128, seed=2)
    parts = [GroupedWeight(first, torch.float32), GroupedWeight(second, torch.float32), PlainWeight(plain)]
    rows = [part.dequantised(slice(0, len(part.low)), torch.float32) for part in (first, second)]
    x, bias = drawn(5, 128, seed=3), drawn(56, seed=4)
    torch.testing.assert_close(JoinedWeight(parts)(x, bias), x @ torch.cat([*rows, plain]).T + bias)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_packing_is_undone(bits: int) -> None:
    codes = torch.randint(0, 1 << bits, (3, 16), dtype=torch.uint8)
    assert torch.equal(unpacked(packed(codes, bits), bits), codes)


def test_columns_of_two_level_scales() -> None:
    """A part may begin within a group, and within a group of groups."""
    matrix = GroupedMatrix(
        low=torch.randint(0, 256, (3, 32), dtype=torch.uint8),
        high=torch.randint(0, 256, (3, 8), dtype=torch.uint8),
        bits=5,
        scales=torch.randint(0, 64, (3, 4), dtype=torch.uint8),
        minima=torch.randint(0, 64, (3, 4), dtype=torch.uint8),
        outer_scales=drawn(3, 2).half(),
        outer_minima=drawn(3, 2, seed=1).half(),
    )
    whole = matrix.dequantised(slice(0, 3), torch.float32)
    for columns in (slice(0, 64), slice(8, 24), slice(24, 64), slice(8, 56)):
        assert torch.equal(matrix.columns(columns).dequantised(slice(0, 3), torch.float32), whole[:, columns])
