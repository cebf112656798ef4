"""Products of low rank on CPUs."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("baton.engine.native.products", reason="nothing was compiled when this was installed")

from baton.engine.engine import Engine
from baton.engine.layers.weights import panel_weight
from baton.engine.lora.low_rank import LowRank, LowRankOutput
from baton.engine.lora.panel_product import PanelProduct, add_all
from baton.engine.lora.segmented import PlainProduct, product_of
from baton.engine.native.products import instruction_sets
from baton.engine.outputs import PositionLogprobs
from baton.engine.request import Request
from baton.engine.sampling.params import SamplingParams
from tests.unit.engine.lora.lora_rig import lora_engine, random_tokens, request

DTYPES = [torch.float32, torch.bfloat16]


def matrices(dtype: torch.dtype) -> LowRank:
    """Matrices of two of three fused projections."""
    draw = torch.Generator().manual_seed(0)
    a, first, last = (torch.randn(shape, generator=draw).to(dtype) for shape in ((6, 64), (32, 4), (16, 2)))
    outputs = [LowRankOutput(slice(0, 32), slice(0, 4), first), LowRankOutput(slice(48, 64), slice(4, 6), last)]
    return LowRank(a, outputs)


@pytest.mark.parametrize("x_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_added_to_their_columns(dtype: torch.dtype, x_dtype: torch.dtype) -> None:
    given = matrices(dtype)
    x, before = torch.randn(5, 64).to(x_dtype), torch.randn(5, 64).to(x_dtype)
    inner, expected = x.double() @ given.a.double().t(), before.double()
    for each in given.outputs:
        expected[:, each.columns] += inner[:, each.ranks] @ each.b.double().t()
    output = before.clone()
    product_of(given)(x, output)
    tolerance = 1e-4 if dtype == x_dtype == torch.float32 else 0.25  # of numbers of up to 60
    torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=2**-7)
    assert torch.equal(output[:, 32:48], before[:, 32:48])


def test_other_types_than_bfloat16_are_computed_by_torch() -> None:
    assert isinstance(product_of(matrices(torch.float32)), PlainProduct)
    assert isinstance(product_of(matrices(torch.float16)), PlainProduct)


@pytest.fixture
def own_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Baton's own products in bf16, even if oneDNN's are faster on this processor."""
    sets = instruction_sets()
    if not sets:
        pytest.skip("this processor has neither AVX2 nor AVX-512")
    monkeypatch.setattr(panel_weight, "product_instructions", lambda: sets[0])


@pytest.mark.usefixtures("own_products")
def test_bits_depend_on_the_row_alone() -> None:
    product = product_of(matrices(torch.bfloat16))
    assert isinstance(product, PanelProduct)
    x, together = torch.randn(9, 64).bfloat16(), torch.zeros(9, 64, dtype=torch.bfloat16)
    product(x, together)
    for first, count in ((0, 1), (3, 2), (2, 7)):
        alone = torch.zeros(count, 64, dtype=torch.bfloat16)
        product(x[first : first + count], alone)
        assert torch.equal(alone, together[first : first + count])


def odd_matrices(seed: int) -> LowRank:
    """Matrices of two projections, of which one has columns in two pieces; no size is a whole number of panels."""
    draw = torch.Generator().manual_seed(seed)
    a, *b = (torch.randn(shape, generator=draw).bfloat16() for shape in ((20, 70), (37, 18), (50, 18), (5, 2)))
    columns = (slice(3, 40), slice(45, 95), slice(40, 45))
    ranks = (slice(0, 18), slice(0, 18), slice(18, 20))
    return LowRank(a, [LowRankOutput(*each) for each in zip(columns, ranks, b, strict=True)])


@pytest.mark.parametrize("instructions", instruction_sets())
def test_runs_of_several_adapters_are_added_in_one_call(instructions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel_weight, "product_instructions", lambda: instructions)
    given = [odd_matrices(seed) for seed in range(3)]
    products = [PanelProduct(each) for each in given]
    runs = [(0, 2, 1), (1, 4, 3), (2, 10, 190), (0, 200, 70)]  # adapter, first row, rows
    x, before = torch.randn(280, 70).bfloat16(), torch.randn(280, 100).bfloat16()
    expected = before.double()
    for number, first, count in runs:
        rows = slice(first, first + count)
        inner = x[rows].double() @ given[number].a.double().t()
        for each in given[number].outputs:
            expected[rows, each.columns] += inner[:, each.ranks] @ each.b.double().t()
    output = before.clone()
    add_all([(products[number].products, first, count) for number, first, count in runs], x, output)
    torch.testing.assert_close(output.double(), expected, atol=0.5, rtol=2**-7)  # of numbers of up to 150
    for row in (0, 1, 3, 7, 9, 270, 279):
        assert torch.equal(output[row], before[row])
    for number, first, count in runs:
        alone = before[first : first + count].clone()
        products[number](x[first : first + count], alone)
        assert torch.equal(alone, output[first : first + count])


@pytest.mark.usefixtures("own_products")
def test_products_of_another_layer_are_refused() -> None:
    product = PanelProduct(odd_matrices(0))
    for num_inputs, num_columns in ((72, 100), (70, 94)):
        x, output = torch.zeros(1, num_inputs).bfloat16(), torch.zeros(1, num_columns).bfloat16()
        with pytest.raises(ValueError, match="of this layer"):
            product(x, output)


@pytest.mark.usefixtures("own_products")
@pytest.mark.parametrize(("first", "count"), [(0, 3), (2, 1), (3, 0), (1, 2**64 - 1)])
def test_rows_of_another_step_are_refused(first: int, count: int) -> None:
    """Such rows would be written outside of the output."""
    product = PanelProduct(odd_matrices(0))
    x, output = torch.zeros(2, 70).bfloat16(), torch.zeros(2, 100).bfloat16()
    with pytest.raises(ValueError, match="rows that there are"):
        add_all([(product.products, first, count)], x, output)


@pytest.mark.usefixtures("own_products")
def test_a_request_has_the_same_bits_whatever_adapters_others_have(model: Path, adapters: dict[str, Path]) -> None:
    engine = lora_engine(model, dtype="bfloat16", enable_prefix_caching=False)
    for name in ("all", "attention"):
        engine.adapters.load(name, adapters[name])
    sampling = SamplingParams(temperature=0, max_tokens=6, logprobs=5, ignore_eos=True)
    names = (None, "all", None, "attention", "all")
    requests = [(f"{place}", random_tokens(20 + place, place), name, sampling) for place, name in enumerate(names)]
    separate = [logprobs_of(engine, request(*each)) for each in requests]
    assert logprobs_of(engine, *(request(*each) for each in requests)) == {
        name: each for alone in separate for name, each in alone.items()
    }


def logprobs_of(engine: Engine, *requests: Request) -> dict[str, list[PositionLogprobs]]:
    """Return the logprobs of each output token, by request."""
    found: dict[str, list[PositionLogprobs]] = {each.request_id: [] for each in requests}
    for each in requests:
        engine.add(each)
    while engine.has_work:
        for output in engine.run(engine.schedule()).outputs:
            if output.sampled is not None and output.sampled.logprobs is not None:
                found[output.request_id].append(output.sampled.logprobs)
    return found
