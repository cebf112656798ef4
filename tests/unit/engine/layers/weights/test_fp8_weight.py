"""FP8 products as computed on GPUs, compared with double-precision sums of the same bytes.

Products with row scales are torch's own, which supports them on CPUs too. Grouped ones and those with block scales are
emulated under the conditions of torch's CUDA code. Torch's shape functions, which check some of these conditions, get
our arguments as well.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import ScalingType

from baton.engine.errors import UnsupportedModel
from baton.engine.layers import experts as expert_layers
from baton.engine.layers.experts import ROW_TILE, Expert, Experts
from baton.engine.layers.fp8_tokens.quantise import E4M3, quantise
from baton.engine.layers.linear import Linear
from baton.engine.layers.weights.fp8_weight import BlockScaledWeight, Fp8Products, RowScaledWeight, products_on
from baton.engine.layers.weights.grouped_product import Fp8Product, grouped_product
from tests.paged_model import CPU
from tests.unit.engine.emulation.fp8_emulation import HOPPER, EmulatedFp8


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> EmulatedFp8:
    return EmulatedFp8.installed(monkeypatch)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rows_weight(num_outputs: int, size: int, seed: int = 0) -> RowScaledWeight:
    """Return a weight whose rows have very different magnitudes."""
    weight = drawn(num_outputs, size, seed=seed) * torch.logspace(-3, 3, num_outputs)[:, None]
    scales = weight.abs().amax(1, keepdim=True) / 448
    return RowScaledWeight((weight / scales).to(E4M3), scales)


def exact_product(x: Tensor, width: int, values: Tensor, spread: Tensor) -> Tensor:
    """Return the product of the dequantised numbers, in double precision."""
    tokens, scales = quantise(x, width)
    return (tokens.double() * scales.repeat_interleave(width, 1)) @ (values.double() * spread).T


@pytest.mark.parametrize("shape", [(1, 64, 48), (5, 128, 16), (40, 512, 1104)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_torch_products_with_row_scales_are_exact_up_to_rounding(shape: tuple[int, int, int], has_bias: bool) -> None:
    num_tokens, size, num_outputs = shape
    weight = rows_weight(num_outputs, size)
    bias = drawn(num_outputs, seed=2).bfloat16() if has_bias else None
    x = (drawn(num_tokens, size, seed=1) * torch.logspace(-2, 2, num_tokens)[:, None]).bfloat16()
    result = Linear(weight, bias)(x)
    product = exact_product(x, size, weight.values, weight.scales)
    expected = product if bias is None else product + bias.double()
    assert result.dtype == torch.bfloat16
    roundings = 2**-8 * (product.abs() + (0 if bias is None else expected.abs()))  # to bf16, once or twice
    largest = exact_product(x.abs(), size, weight.values.float().abs(), weight.scales)
    assert ((result.double() - expected).abs() <= 1.01 * roundings + 1e-6 * largest).all()


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 4, 130])
@pytest.mark.parametrize("size", [128, 384, 640])
@pytest.mark.parametrize(("num_outputs", "first"), [(256, 0), (576, 0), (64, 0), (256, 96), (80, 16)])
def test_products_with_block_scales_are_exact_up_to_rounding(
    num_tokens: int, size: int, num_outputs: int, first: int, emulated: EmulatedFp8
) -> None:
    """Rows that begin with a block of 128, and rows that begin within one."""
    values = drawn(num_outputs, size).to(E4M3)
    above = (torch.arange(num_outputs) + first) // 128
    grid = torch.rand(int(above[-1]) + 1, size // 128, generator=torch.Generator().manual_seed(1)) + 0.5
    grid = grid[above]
    weight = BlockScaledWeight.of(values, grid)
    is_whole = first % 128 == 0 or len(above.unique()) == 1
    assert weight.has_whole_blocks == is_whole
    x, bias = drawn(num_tokens, size, seed=3).bfloat16(), drawn(num_outputs, seed=2).bfloat16()
    expected = exact_product(x, 128, values, grid.repeat_interleave(128, 1))
    torch.testing.assert_close(weight(x).double(), expected, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(weight(x, bias).double(), expected + bias.double(), atol=2e-2, rtol=1e-2)
    recipe = ScalingType.BlockWise128x128 if is_whole else ScalingType.BlockWise1x128
    assert emulated.recipes == [recipe, recipe]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compares products of a real GPU")
@pytest.mark.parametrize("num_tokens", [1, 3, 8, 130])
def test_products_on_a_gpu_are_exact_up_to_rounding(num_tokens: int) -> None:
    """Products that are emulated elsewhere, if this GPU has them, compared with double-precision sums."""
    gpu = torch.device("cuda")
    found, size = products_on(gpu), 640
    x = drawn(num_tokens, size, seed=3).bfloat16().to(gpu)

    def close(result: Tensor, expected: Tensor) -> None:
        error = (result.double() - expected).norm() / expected.norm()
        assert error < 4e-3  # rounded to bf16

    weights = [rows_weight(256, size, seed) for seed in range(3)]
    rows = [RowScaledWeight(each.values.to(gpu), each.scales.to(gpu)) for each in weights]
    exact = [exact_product(x, size, each.values, each.scales) for each in rows]
    if found.of_rows:
        close(rows[0](x), exact[0])
    if found.of_groups:
        group = grouped_product([Linear(each) for each in rows])
        ends = torch.tensor([num_tokens // 3, num_tokens // 3, num_tokens], dtype=torch.int32, device=gpu)
        cut = num_tokens // 3
        close(group(x, ends), torch.cat([exact[0][:cut], exact[2][cut:]]))
    for num_outputs, first in ((512, 0), (576, 0), (256, 96)) if found.of_blocks else ():
        above = (torch.arange(num_outputs) + first) // 128
        grid = (torch.rand(int(above[-1]) + 1, size // 128)[above] + 0.5).to(gpu)
        values = drawn(num_outputs, size).to(E4M3).to(gpu)
        expected = exact_product(x, 128, values, grid.repeat_interleave(128, 1))
        close(BlockScaledWeight.of(values, grid)(x), expected)


@pytest.mark.parametrize("num_tokens", [1, 6, 8])
@pytest.mark.parametrize("first", [0, 96])
def test_torch_shape_functions_accept_our_arguments(num_tokens: int, first: int) -> None:
    """Shape functions check the same conditions as the GPU code."""
    x = torch.empty(num_tokens, 384, dtype=torch.bfloat16, device="meta")
    grid = torch.rand(4, 3)[(torch.arange(256) + first) // 128]
    made = BlockScaledWeight.of(torch.zeros(256, 384).to(E4M3), grid)
    scales = torch.empty_strided(made.scales.shape, made.scales.stride(), device="meta")
    weight = BlockScaledWeight(made.values.to("meta"), scales, made.has_whole_blocks, made.out_features)
    assert weight(x).shape == (num_tokens, 256)
    rows = rows_weight(48, 384)
    on_meta = RowScaledWeight(rows.values.to("meta"), rows.scales.to("meta"))
    assert on_meta(x).shape == (num_tokens, 48)
    several = torch.empty(3, 48, 384, dtype=E4M3, device="meta")
    group = Fp8Product(several, torch.empty(3, 48, device="meta"))
    assert group(x, torch.empty(3, dtype=torch.int32, device="meta")).shape == (num_tokens, 48)
    with pytest.raises(RuntimeError, match="divisible by 16"):  # the condition is checked
        RowScaledWeight(rows.values.to("meta")[:, :40], rows.scales.to("meta"))(x[:, :40])


def test_tokens_are_scaled_by_their_largest_element() -> None:
    x = drawn(6, 256).bfloat16()
    x[1] = 0
    x[2, 3] = torch.nan
    x[3] *= 1e-30
    x[4, :128] *= 1e6
    tokens, scales = quantise(x, 128)
    assert tokens.dtype == E4M3
    assert scales.shape == (6, 2)
    back = tokens.double() * scales.repeat_interleave(128, 1)
    finite = [0, 1, 3, 4, 5]
    error = (back - x.double()).abs()[finite].unflatten(1, (2, 128))
    largest = x.double().abs()[finite].unflatten(1, (2, 128)).amax(2, keepdim=True)
    assert (error <= largest / 28).all()  # half of the distance between the two largest numbers, 448 and 416
    assert (tokens.float().abs().unflatten(1, (2, 128)).amax(2)[[0, 3, 4, 5]] == 448).all()
    assert back[1].eq(0).all()
    assert back[2, :128].isnan().all()
    assert back[2, 128:].isfinite().all()


@pytest.mark.parametrize("tiles", [[1, 1, 1], [0, 3, 0], [0, 0, 5]])
def test_all_experts_run_as_one_product(tiles: list[int], emulated: EmulatedFp8) -> None:
    slots = [
        Expert(Linear(rows_weight(64, 48, seed)), Linear(rows_weight(48, 32, seed + 10))) for seed in range(3)
    ]  # fmt: skip
    sizes = [ROW_TILE * count for count in tiles]
    rows = drawn(sum(sizes), 48, seed=5).bfloat16() * 1e-2
    alone = Experts(slots, is_grouped=False)(rows, sizes)
    assert not emulated.groups
    grouped = Experts(slots, is_grouped=True)
    torch.testing.assert_close(grouped(rows, sizes), alone, atol=0, rtol=1e-2)
    assert emulated.groups == [sizes, sizes]
    first = grouped.slots[1].down.form
    assert isinstance(first, RowScaledWeight)
    assert torch.equal(first.scales, slots[1].down.form.scales)  # type: ignore[union-attr]
    again = Experts([*grouped.slots[1:], slots[0]], is_grouped=True)  # views of a grouped layout can be grouped again
    order = [*sizes[1:], sizes[0]]
    moved = torch.cat([rows[sizes[0] :], rows[: sizes[0]]])
    expected = torch.cat([alone[sizes[0] :], alone[: sizes[0]]])
    torch.testing.assert_close(again(moved, order), expected, atol=0, rtol=1e-2)


@pytest.mark.parametrize(
    ("capability", "cuda", "expected"),
    [
        ((9, 0), "12.9", HOPPER),
        ((9, 0), "13.0", HOPPER),
        ((9, 0), "12.8", Fp8Products(of_rows=True, of_groups=True)),
        ((10, 0), "13.0", Fp8Products(of_rows=True, of_groups=True)),
        ((8, 9), "12.9", Fp8Products(of_rows=True)),
        ((8, 0), "12.9", Fp8Products()),
        ((12, 0), "13.0", Fp8Products()),
        ((9, 0), None, Fp8Products()),
    ],
)
def test_supported_products_follow_from_the_compute_capability(
    capability: tuple[int, int], cuda: str | None, expected: Fp8Products, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert products_on(torch.device("cuda")) == expected
    assert products_on(CPU) == Fp8Products()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32])
def test_experts_are_grouped_on_gpus_except_in_fp32(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    on_gpu, on_cpu = (SimpleNamespace(is_cuda=is_cuda, dtype=dtype, device=None) for is_cuda in (True, False))
    assert expert_layers._is_faster_grouped(on_gpu) == (dtype != torch.float32)  # type: ignore[arg-type]
    assert not expert_layers._is_faster_grouped(on_cpu)  # type: ignore[arg-type]


def test_a_layer_with_only_some_experts_in_fp8_is_refused() -> None:
    linears = [Linear(rows_weight(64, 48)), Linear(drawn(64, 48).bfloat16(), packed=False)]
    with pytest.raises(UnsupportedModel, match="1 of 2 experts of a layer are in FP8: must be all or none"):
        grouped_product(linears)
