"""An expert's rows, independent of the rest of the batch."""

from collections.abc import Iterator

import pytest
import torch

from baton.engine.layers.experts import ROW_TILE, Expert, Experts
from baton.engine.layers.linear import Linear

HIDDEN, SIZE = 48, 96


@pytest.fixture(params=[1, 2, 3, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Number of torch threads during the test."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_bits_do_not_depend_on_the_others(threads: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(threads)

    def linear(outputs: int, inputs: int) -> Linear:
        return Linear(torch.randn(outputs, inputs, generator=draw).to(dtype), packed=dtype is torch.bfloat16)

    experts = Experts([Expert(linear(2 * SIZE, HIDDEN), linear(HIDDEN, SIZE)) for _ in range(3)])
    rows = torch.randn(8 * ROW_TILE, HIDDEN, generator=draw).to(dtype)
    alone = experts(rows, [0, len(rows), 0])
    for before, after in ((0, 1), (1, 3), (37, 2), (90, 111)):
        others = torch.randn((before + after) * ROW_TILE, HIDDEN, generator=draw).to(dtype)
        first, last = others[: before * ROW_TILE], others[before * ROW_TILE :]
        together = experts(torch.cat([first, rows, last]), [len(first), len(rows), len(last)])
        assert torch.equal(together[len(first) : len(first) + len(rows)], alone)
