"""Native row operations compared with torch's, over random shapes."""

import random
from collections.abc import Iterator
from typing import get_args

import pytest
import torch
from torch import Tensor

pytest.importorskip("baton.engine.native.layer_ops", reason="nothing was compiled when this was installed")

from baton.engine.activation import Activation
from baton.engine.native.layer_ops import Float32Ops, instruction_sets
from baton.engine.ops.base import HeadNorms, LayerOps, Rotation
from baton.engine.ops.factory import ops_for
from baton.engine.ops.native_ops import NativeOps
from baton.engine.ops.torch_ops import TorchOps

EPS = 1e-6
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
INSTRUCTIONS = pytest.mark.parametrize("instructions", instruction_sets())
SHAPES = ((1, 1024), (3, 16), (5, 7), (2, 1), (64, 100), (130, 256), (700, 48))
TOLERANCES = {torch.float32: {"atol": 2e-6, "rtol": 2e-6}, torch.bfloat16: {"atol": 2**-9, "rtol": 2**-8}}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def drawn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return (3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def close(result: Tensor, expected: Tensor) -> None:
    """Assert equality up to rounding to the result's dtype; `expected` is in fp32."""
    torch.testing.assert_close(result.float(), expected, **TOLERANCES[result.dtype])


@INSTRUCTIONS
@DTYPES
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_norms_agree_with_torch(instructions: str, dtype: torch.dtype, shape: tuple[int, int], offset: float) -> None:
    ops, reference = NativeOps(instructions), TorchOps()
    x, addend, weight = drawn(*shape, dtype=dtype), drawn(*shape, dtype=dtype, seed=1), drawn(shape[1], dtype=dtype)
    expected = x.float() * (x.float().square().mean(1, keepdim=True) + EPS).rsqrt() * (weight.float() + offset)
    close(ops.rms_norm(x, weight, EPS, offset), expected)
    close(reference.rms_norm(x, weight, EPS, offset), expected)
    total = x + addend
    added, normed = ops.add_rms_norm(x.clone(), addend, weight, EPS, offset)
    assert torch.equal(added, total)
    close(normed, reference.rms_norm(total.float(), weight.float(), EPS, offset))
    assert torch.equal(normed, ops.rms_norm(total, weight, EPS, offset))


@INSTRUCTIONS
@DTYPES
@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize("shape", SHAPES)
def test_activations_agree_with_torch(
    instructions: str, dtype: torch.dtype, shape: tuple[int, int], activation: Activation
) -> None:
    gate_up = 4 * drawn(shape[0], 2 * shape[1], dtype=dtype)
    expected = TorchOps().gate_and_mul(gate_up.double(), activation).float()
    close(NativeOps(instructions).gate_and_mul(gate_up, activation), expected)


@INSTRUCTIONS
@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
def test_int8_rows_equal_those_of_torch_bit_for_bit(
    instructions: str, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    ops, reference, draw = NativeOps(instructions), TorchOps(), torch.Generator().manual_seed(2)
    x = drawn(shape[0], shape[1] + 3, dtype=dtype)[:, 3:] * torch.rand(shape[0], 1, generator=draw).to(dtype)
    x[0], x[-1, -1] = 0, -5
    rows, scales = ops.quantise(x)
    expected_rows, expected_scales = reference.quantise(x)
    assert torch.equal(rows, expected_rows)
    assert torch.equal(scales, expected_scales)
    assert ((rows.float() - 128) * scales[:, None] - x.float()).abs().le(0.5001 * scales[:, None]).all()
    products, bias = drawn(*shape, dtype=dtype), drawn(shape[1], dtype=dtype, seed=1)
    for addend in (None, bias):
        expected = reference.scale(products, scales, addend)
        assert torch.equal(ops.scale(products.clone(), scales, addend), expected)


@INSTRUCTIONS
@DTYPES
@pytest.mark.parametrize(
    ("num_tokens", "num_chosen", "width"), [(1, 4, 512), (3, 1, 7), (5, 2, 16), (130, 8, 100), (0, 4, 8)]
)
def test_weighted_sums_agree_with_torch(
    instructions: str, dtype: torch.dtype, num_tokens: int, num_chosen: int, width: int
) -> None:
    ops, reference = NativeOps(instructions), TorchOps()
    rows = drawn(num_tokens * num_chosen + 3, width, dtype=dtype)
    weights = drawn(num_tokens, num_chosen, dtype=torch.float32, seed=1).abs()
    places = torch.randint(len(rows), (num_tokens * num_chosen,), generator=torch.Generator().manual_seed(2))
    for some, where in ((rows, places), (rows[3:], None)):
        expected = reference.weighted_sum(some.float().clone(), where, weights)
        result = ops.weighted_sum(some, where, weights)
        assert result.dtype == dtype
        torch.testing.assert_close(result.float(), expected, atol=1e-4, rtol=TOLERANCES[dtype]["rtol"])


@INSTRUCTIONS
@pytest.mark.parametrize("wrong", [torch.inf, -torch.inf, torch.nan])
def test_a_non_finite_row_stays_non_finite(instructions: str, wrong: float) -> None:
    x = torch.ones(2, 40)
    x[1, 33] = wrong
    for ops in (NativeOps(instructions), TorchOps()):
        rows, scales = ops.quantise(x)
        assert scales[0] == 1 / 127
        assert not scales[1].isfinite()
        assert ops.scale(rows.float() - 128, scales)[0].isfinite().all()
        assert not ops.scale(rows.float() - 128, scales)[1].isfinite().any()


@INSTRUCTIONS
@DTYPES
@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_rotation_agrees_with_torch(
    instructions: str, dtype: torch.dtype, has_norm: bool, interleaved: bool, seed: int
) -> None:
    draw, offset = random.Random(seed), float(seed % 2)
    num_tokens, num_heads, width = draw.choice((1, 3, 200)), draw.randint(1, 12), 2 * draw.choice((1, 4, 32, 33, 64))
    angles = torch.outer(torch.arange(50.0), torch.rand(width // 2))
    positions = torch.randint(50, (num_tokens,))
    rotation = Rotation(torch.cat([angles.cos(), angles.sin()], dim=-1), positions, interleaved)
    weight = drawn(num_heads, width, dtype=dtype)
    whole = drawn(num_tokens, num_heads + 2, width + 6, dtype=dtype, seed=seed)
    before, heads = whole.clone(), whole[:, 1:-1, 3:-3]
    norms = HeadNorms(weight, (1,) * num_heads, EPS, offset) if has_norm else None
    exact = HeadNorms(weight.float(), (1,) * num_heads, EPS, offset) if has_norm else None
    expected = TorchOps().rotate(heads.float(), rotation, exact)
    result = NativeOps(instructions).rotate(heads, rotation, norms)
    torch.testing.assert_close(
        result.float(), expected, atol=16 * TOLERANCES[dtype]["atol"], rtol=TOLERANCES[dtype]["rtol"]
    )
    assert torch.equal(whole[:, 0], before[:, 0])
    assert torch.equal(whole[..., :3], before[..., :3])
    assert torch.equal(whole[..., -3:], before[..., -3:])


@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("interleaved", [True, False])
def test_only_the_first_dimensions_of_a_head_are_rotated(has_norm: bool, interleaved: bool) -> None:
    num_tokens, num_heads, head_dim, rotary_dim = 7, 5, 16, 12
    angles = torch.outer(torch.arange(50.0), torch.rand(rotary_dim // 2))
    rotation = Rotation(torch.cat([angles.cos(), angles.sin()], dim=-1), torch.randint(50, (num_tokens,)), interleaved)
    heads = drawn(num_tokens, num_heads + 1, head_dim, dtype=torch.float32)[:, 1:]
    weight = drawn(1, head_dim, dtype=torch.float32).repeat(num_heads, 1)
    norms = HeadNorms(weight, (3, 2), EPS) if has_norm else None
    normed = TorchOps().rms_norm(heads, weight[0], EPS) if has_norm else heads.clone()
    rotated = TorchOps().rotate(normed[..., :rotary_dim], rotation)
    expected = torch.cat([rotated, normed[..., rotary_dim:]], dim=-1)
    assert not torch.equal(rotated, normed[..., :rotary_dim])
    for ops in (TorchOps(), NativeOps()):
        torch.testing.assert_close(ops.rotate(heads.clone(), rotation, norms), expected, atol=1e-5, rtol=1e-5)


@DTYPES
def test_bits_depend_on_the_row_alone(dtype: torch.dtype) -> None:
    """The instruction set, the number of threads and the other rows do not change bits."""
    x, addend, weight = drawn(500, 100, dtype=dtype), drawn(500, 100, dtype=dtype, seed=1), drawn(100, dtype=dtype)

    def results(ops: LayerOps, rows: slice) -> list[Tensor]:
        normed = ops.add_rms_norm(x[rows].clone(), addend[rows], weight, EPS)[1]
        scaled = ops.scale(addend[rows].clone(), ops.quantise(x[rows])[1])
        gated = [ops.gate_and_mul(x[rows], activation) for activation in get_args(Activation)]
        return [ops.rms_norm(x[rows], weight, EPS), normed, scaled, *gated]

    expected = results(NativeOps(), slice(None))
    for instructions in instruction_sets():
        for part in (slice(None), slice(0, 1), slice(77, 78), slice(3, 450)):
            for threads in (1, 2):
                torch.set_num_threads(threads)
                found = results(NativeOps(instructions), part)
                assert all(torch.equal(a, b[part]) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_torch_silu_of_a_row_does_not_depend_on_the_other_rows(threads: int) -> None:
    torch.set_num_threads(threads)
    gate_up = drawn(700, 202, dtype=torch.float32)
    whole = TorchOps().gate_and_mul(gate_up)
    assert torch.equal(torch.cat([TorchOps().gate_and_mul(row[None]) for row in gate_up]), whole)


@INSTRUCTIONS
def test_extreme_numbers_agree_with_torch(instructions: str) -> None:
    ops = NativeOps(instructions)
    gates = torch.tensor([[0.0, -0.0, 88.0, 3e38, -88.0, -200.0, -3e38, torch.inf, torch.nan, 1e-40]])
    result = ops.gate_and_mul(torch.cat([gates, torch.ones_like(gates)], dim=1))[0]
    expected = torch.nn.functional.silu(gates)[0]
    torch.testing.assert_close(result, expected, atol=1e-33, rtol=1e-6, equal_nan=True)
    wide = torch.tensor([[3.3e38, -3.3e38, torch.nan, torch.inf, 1.0]], dtype=torch.bfloat16)
    total, _ = ops.add_rms_norm(wide.clone(), wide, torch.ones(5, dtype=torch.bfloat16), EPS)
    torch.testing.assert_close(total, wide + wide, equal_nan=True)


def test_empty_batches_give_empty_results() -> None:
    ops, none = NativeOps(), torch.empty(0, 8)
    weight = torch.ones(8)
    assert ops.rms_norm(none, weight, EPS).shape == ops.add_rms_norm(none, none, weight, EPS)[1].shape == (0, 8)
    assert ops.gate_and_mul(none).shape == (0, 4)


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="does not have"):
        Float32Ops("mmx")
    table = torch.zeros(4, 8)
    for positions in ([4], [-1]):
        with pytest.raises(ValueError, match="beyond the table"):
            NativeOps().rotate(torch.zeros(1, 1, 8), Rotation(table, torch.tensor(positions), False))
    with pytest.raises(ValueError, match="pairs"):
        NativeOps().rotate(torch.zeros(1, 1, 7), Rotation(torch.zeros(4, 7), torch.tensor([0]), False))
    for rows, places in ((2, torch.tensor([0, 2])), (2, torch.tensor([-1, 0])), (1, None)):
        with pytest.raises(ValueError, match="beyond the rows"):
            NativeOps().weighted_sum(torch.zeros(rows, 8), places, torch.ones(1, 2))


def test_cpus_use_the_native_ops() -> None:
    assert isinstance(ops_for(torch.device("cpu")), NativeOps)
    assert isinstance(ops_for(torch.device("mps")), TorchOps)
