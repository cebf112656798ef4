"""Products of low rank on CPUs."""

import pytest
import torch

from baton.engine.lora.low_rank import LowRank, LowRankOutput
from baton.engine.lora.segmented import PanelProduct, PlainProduct, product_of
from baton.engine.native.products import has_fastest_products

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


@pytest.mark.skipif(not has_fastest_products(), reason="this processor has no products of pairs, or faster ones")
def test_bits_depend_on_the_row_alone() -> None:
    product = product_of(matrices(torch.bfloat16))
    assert isinstance(product, PanelProduct)
    x, together = torch.randn(9, 64).bfloat16(), torch.zeros(9, 64, dtype=torch.bfloat16)
    product(x, together)
    for first, count in ((0, 1), (3, 2), (2, 7)):
        alone = torch.zeros(count, 64, dtype=torch.bfloat16)
        product(x[first : first + count], alone)
        assert torch.equal(alone, together[first : first + count])
