"""Products of bfloat16 pairs, compared with torch's over random shapes."""

import random
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

pytest.importorskip("baton.engine.native.products", reason="nothing was compiled when this was installed")

from baton.engine.layers.experts import Expert, Experts, GatedExperts, SeparateProducts
from baton.engine.layers.linear import Linear
from baton.engine.layers.mlp import MLP
from baton.engine.layers.weights import panel_weight
from baton.engine.layers.weights.panel_weight import PairedWeight, PanelWeight, SingleWeight, can_have_panels
from baton.engine.native.products import GatedProducts, Product, instruction_sets
from baton.engine.ops.torch_ops import TorchOps

pytestmark = pytest.mark.skipif(not instruction_sets(), reason="this processor has neither AVX2 nor AVX-512")


QUANTIZATIONS = pytest.mark.parametrize("quantization", [None, "int8"])


@pytest.fixture(autouse=True, params=instruction_sets())
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    chosen: str = request.param
    monkeypatch.setattr(panel_weight, "product_instructions", lambda: chosen)
    return chosen


@pytest.fixture(autouse=True, params=[1, 5])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def matrix(num_outputs: int, num_inputs: int, seed: int = 0) -> Tensor:
    """Return a matrix whose products are about as large as their inputs."""
    return (drawn(num_outputs, num_inputs, seed=seed).float() / num_inputs**0.5).bfloat16()


def close(result: Tensor, expected: Tensor) -> None:
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), expected, atol=2**-7, rtol=2**-7)


@pytest.mark.parametrize("seed", range(30))
def test_products_agree_with_torchs(seed: int) -> None:
    draw = random.Random(seed)
    num_outputs, num_inputs = draw.randint(1, 300), 2 * draw.choice([1, 2, draw.randint(1, 300)])
    num_rows = draw.choice([0, 1, 2, 7, 8, 9, 129, 300])
    weight, bias = matrix(num_outputs, num_inputs, seed), drawn(num_outputs, seed=seed + 1) if seed % 2 else None
    x = drawn(num_rows, num_inputs, seed=seed + 2)
    linear = Linear(weight, bias)
    assert isinstance(linear.form, PairedWeight)
    close(linear(x), F.linear(x.float(), weight.float(), None if bias is None else bias.float()))
    wide = torch.cat([x, x], dim=1)
    assert torch.equal(linear(wide[:, :num_inputs]), linear(x))  # rows that are not contiguous


@pytest.mark.parametrize("seed", range(10))
def test_products_in_fp32_agree_with_torchs(seed: int) -> None:
    draw = random.Random(seed)
    num_outputs, num_inputs = draw.randint(1, 300), draw.randint(1, 600)
    weight = torch.randn(num_outputs, num_inputs, generator=torch.Generator().manual_seed(seed))
    assert can_have_panels(weight, inputs_of_unit=1)
    product, x = SingleWeight(weight), drawn(200, num_inputs, seed=seed)
    result = product(x)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, F.linear(x.double(), weight.double()).float(), atol=1e-4, rtol=1e-5)
    for first, count in ((0, 0), (0, 1), (3, 5), (70, 130)):
        assert torch.equal(product(x[first : first + count]), result[first : first + count])


def test_products_of_long_rows_agree_with_torchs() -> None:
    """Long rows are split: each part is multiplied with all rows before the next one."""
    weight, x = matrix(40, 9000), drawn(150, 9000, seed=1)
    close(Linear(weight)(x), F.linear(x.float(), weight.float()))


@QUANTIZATIONS
@pytest.mark.parametrize("num_inputs", [60, 9000])
def test_bits_depend_on_the_row_alone(num_inputs: int, quantization: str | None) -> None:
    """The number of rows and the place of a row among them do not change bits."""
    linear = Linear(matrix(100, num_inputs), drawn(100), quantization=quantization)
    assert isinstance(linear.form, PanelWeight)
    rows = drawn(300, num_inputs, seed=1)
    together = linear(rows)
    for first in (0, 1, 3, 127, 128, 200):
        for count in (1, 2, 3, 5, 8, 9, 15, 64, 100):
            some = rows[first : first + count]
            assert torch.equal(linear(some), together[first : first + count])


@pytest.mark.parametrize("seed", range(20))
def test_mlps_agree_with_torchs(seed: int) -> None:
    draw = random.Random(seed)
    hidden, inner = 2 * draw.randint(1, 300), 16 * draw.randint(1, 12)
    sizes = [draw.choice([0, 0, 1, 2, 7, 8, 9, 33, 200]) for _ in range(draw.randint(1, 12))]
    pairs = [(matrix(2 * inner, hidden, slot), matrix(hidden, inner, slot + 50)) for slot in range(len(sizes))]
    experts = Experts([Expert(Linear(gate_up), Linear(down)) for gate_up, down in pairs])
    assert isinstance(experts._current.products, GatedExperts)
    rows = drawn(sum(sizes), hidden, seed=seed)
    results = experts(rows, sizes)
    assert results.shape == rows.shape
    for part, result, (gate_up, down) in zip(rows.split(sizes), results.split(sizes), pairs, strict=True):
        gate, up = F.linear(part.float(), gate_up.float()).chunk(2, dim=1)
        close(result, F.linear((F.silu(gate) * up).bfloat16().float(), down.float()))
        assert torch.equal(MLP(Linear(gate_up), Linear(down))(part), result)


@pytest.mark.parametrize("seed", range(10))
def test_mlps_in_int8_are_exact_up_to_rounding(seed: int) -> None:
    """Compared with sums of the same bytes."""
    draw, ops = random.Random(seed), TorchOps()
    hidden, inner = 4 * draw.randint(1, 150), 16 * draw.randint(1, 12)
    sizes = [draw.choice([0, 1, 2, 7, 8, 9, 33, 200]) for _ in range(draw.randint(1, 5))]
    pairs = [(matrix(2 * inner, hidden, slot), matrix(hidden, inner, slot + 50)) for slot in range(len(sizes))]
    slots = [Expert(*(Linear(each, quantization="int8") for each in pair)) for pair in pairs]
    rows = drawn(sum(sizes), hidden, seed=seed)
    experts = Experts(slots)
    assert isinstance(experts._current.products, GatedExperts)
    results = experts(rows, sizes)

    def product(x: Tensor, weight: Tensor) -> Tensor:
        (inputs, scales), (columns, of_columns) = ops.quantise(x), ops.quantise(weight)
        sums = (inputs.double() - 128) @ (columns.double() - 128).T
        return (sums * of_columns * scales[:, None]).float()

    for part, result, (gate_up, down) in zip(rows.split(sizes), results.split(sizes), pairs, strict=True):
        if len(part):
            gate, up = product(part, gate_up).chunk(2, dim=1)
            expected = product((F.silu(gate) * up).bfloat16(), down)
            # Numbers in the middle between two bytes are rounded either way.
            assert (result.float() - expected).norm() < 0.02 * expected.norm()


@QUANTIZATIONS
def test_bits_of_an_mlp_depend_on_the_row_alone(quantization: str | None) -> None:
    pairs = [(matrix(96, 100, seed), matrix(100, 48, seed + 9)) for seed in range(3)]
    slots = [Expert(*(Linear(each, quantization=quantization) for each in pair)) for pair in pairs]
    experts = Experts(slots)
    assert isinstance(experts._current.products, GatedExperts)
    rows = drawn(40, 100)
    together = experts(rows, [0, 40, 0])
    for first in range(0, 40, 3):
        for count in range(1, min(12, 40 - first)):
            some = rows[first : first + count]
            assert torch.equal(experts(some, [0, count, 0]), together[first : first + count])
            others = torch.cat([rows[:5], some, rows[:7]])
            assert torch.equal(experts(others, [5, count, 7])[5:-7], together[first : first + count])


@pytest.mark.parametrize(
    ("inner", "biases"), [(24, (None, None)), (32, (64, None)), (32, (None, 64))], ids=["odd", "gate bias", "down bias"]
)
def test_unsupported_mlps_are_computed_as_two_products(inner: int, biases: tuple[int | None, int | None]) -> None:
    gate_up, down = matrix(2 * inner, 64), matrix(64, inner, 1)
    first, second = (None if size is None else drawn(size, seed=2) for size in biases)
    linears = Linear(gate_up, first), Linear(down, second)
    assert isinstance(Experts([Expert(*linears)])._current.products, SeparateProducts)
    x = drawn(9, 64, seed=3)
    gate, up = F.linear(x.float(), gate_up.float(), None if first is None else first.float()).chunk(2, dim=1)
    expected = F.linear(F.silu(gate) * up, down.float(), None if second is None else second.float())
    torch.testing.assert_close(MLP(*linears)(x).float(), expected, atol=2**-5, rtol=2**-5)


def test_non_finite_numbers_affect_only_their_row() -> None:
    mlp = MLP(Linear(matrix(64, 64)), Linear(matrix(64, 32)))
    rows = drawn(9, 64, seed=1)
    right = mlp(rows)
    rows[4, 3] = torch.nan
    wrong = mlp(rows)
    assert wrong[4].isnan().all()
    assert torch.equal(wrong[:4], right[:4])
    assert torch.equal(wrong[5:], right[5:])


def test_extreme_gates_do_not_overflow() -> None:
    """The exponential of silu must stay within its range."""
    gate_up = torch.cat([torch.eye(32), torch.ones(32, 32) / 32]).bfloat16()
    rows = torch.zeros(2, 32).bfloat16()
    rows[0], rows[1] = 1e4, -1e4
    results = MLP(Linear(gate_up), Linear(torch.eye(32).bfloat16()))(rows).float()
    torch.testing.assert_close(results[0], torch.full((32,), 1e8), rtol=0.02, atol=0)
    assert bool((results[1].abs() < 1e-20).all())


@pytest.mark.parametrize(
    ("weight", "can"),
    [
        (torch.zeros(5, 6, dtype=torch.bfloat16), True),
        (torch.zeros(5, 7, dtype=torch.bfloat16), False),
        (torch.zeros(0, 6, dtype=torch.bfloat16), False),
        (torch.zeros(5, 6), False),
        (torch.zeros(5, 6, dtype=torch.bfloat16, device="meta"), False),
    ],
)
def test_only_supported_weights_get_panels(weight: Tensor, can: bool) -> None:
    assert can_have_panels(weight) == can


def test_mismatched_inputs_are_refused() -> None:
    """The compiled code would read out of bounds."""
    linear, mlp = Linear(matrix(32, 16)), MLP(Linear(matrix(64, 16)), Linear(matrix(16, 32)))
    for wrong in (drawn(3, 18), drawn(3, 16).float(), drawn(2, 3, 16), drawn(16)):
        for layer in (linear, mlp):
            with pytest.raises(AssertionError):
                layer(wrong)
    with pytest.raises(AssertionError):
        Linear(matrix(32, 16), torch.zeros(32))(drawn(3, 16))
    experts = Experts([Expert(mlp.gate_up, mlp.down)])
    for sizes in ([2], [4000]):
        with pytest.raises(AssertionError):
            experts(drawn(3, 16), sizes)


def test_invalid_products_are_refused(instructions: str) -> None:
    for num_inputs, *unit in ((3, 2), (2, 4, 1, 1), (0, 1)):
        with pytest.raises(ValueError, match="inputs fill their units"):
            Product(instructions, 0, 4, num_inputs, *unit)
    for unit in ((4,), (4, 1), (4, 0, 1), (2, 1, 1), (1, 1, 1)):
        with pytest.raises(ValueError, match="bytes have scales and offsets"):
            Product(instructions, 0, 4, 4, *unit)
    with pytest.raises(ValueError, match="one input, two or four"):
        Product(instructions, 0, 4, 6, 3)
    gate_up, down = Product(instructions, 0, 64, 10, 2), Product(instructions, 0, 10, 32, 2)
    with pytest.raises(ValueError, match="a slot has two weights"):
        GatedProducts([gate_up], [])
    with pytest.raises(ValueError, match="twice as many"):
        GatedProducts([gate_up], [Product(instructions, 0, 12, 32, 2)])
    with pytest.raises(ValueError, match="multiples of 16"):
        GatedProducts([Product(instructions, 0, 16, 10, 2)], [Product(instructions, 0, 10, 8, 2)])
    with pytest.raises(ValueError, match="same sizes"):
        GatedProducts([gate_up, Product(instructions, 0, 64, 12, 2)], [down, Product(instructions, 0, 12, 32, 2)])
    with pytest.raises(ValueError, match="same kind"):
        GatedProducts([gate_up], [Product(instructions, 0, 10, 32, 4, 1, 1)])
    with pytest.raises(ValueError, match="bfloat16 or bytes"):
        GatedProducts([Product(instructions, 0, 64, 10, 1)], [Product(instructions, 0, 10, 32, 1)])
    with pytest.raises(ValueError, match="each slot has a size"):
        GatedProducts([gate_up], [down]).run([1, 1], 0, 0, 1)
    with pytest.raises(ValueError, match="does not have that instruction set"):
        Product("avx1024", 0, 64, 10, 2)


ASKED_TWICE = """
import ctypes

class Stack(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

def take_signals_on(stack):
    assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0

memory = ctypes.create_string_buffer(4096)
take_signals_on(Stack(ctypes.addressof(memory), 0, 4096))  # too small for tiles
from baton.engine.native.products import instruction_sets
first = instruction_sets()
take_signals_on(Stack(None, 2, 0))  # none
assert instruction_sets() == first and "amx" not in first
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's permission for tiles is Linux's")
def test_instruction_sets_stay_the_same() -> None:
    """Weights that are loaded later must be of the same one; Linux refuses tiles while a signal stack is too small."""
    subprocess.run([sys.executable, "-c", ASKED_TWICE], check=True)
