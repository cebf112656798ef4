"""The products of adapters on GPUs, computed on a CPU, are those of the CPU's own ones."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from baton.engine.execution.batch import Batch
from baton.engine.execution.cuda_graphs import NO_DECODES
from baton.engine.layers.linear import Linear
from baton.engine.layers.linear_source import LinearSource, ProjectionRows
from baton.engine.lora.config import LoraConfig
from baton.engine.lora.low_rank import LowRank, LowRankOutput
from baton.engine.lora.segmented import SegmentedAdapters
from baton.engine.lora.stacked import StackedAdapters

SHAPES = ((24, 16), (16, 40))  # outputs and inputs of two Linears
CONFIG = LoraConfig(enabled=True, max_loras=2, max_rank=4, max_cpu_loras=4)
SOURCES = [
    LinearSource([ProjectionRows("q", 16, slice(None)), ProjectionRows("k", 8, slice(None))], 16, slice(None)),
    LinearSource([ProjectionRows("o", 16, slice(None))], 40, slice(None)),
]


def batch(adapters: Sequence[int], lengths: Sequence[int]) -> Batch:
    return replace(NO_DECODES, adapters=tuple(adapters), query_lens_list=list(lengths))


@pytest.fixture
def linears() -> list[Linear]:
    draw = torch.Generator().manual_seed(1)
    return [Linear(torch.randn(shape, generator=draw)) for shape in SHAPES]


def matrices(number: int) -> list[LowRank | None]:
    draw = torch.Generator().manual_seed(number)
    q, k, o = (torch.randn(height, 3, generator=draw) for height in (16, 8, 16))
    fused = LowRank(
        torch.randn(6, 16, generator=draw),
        [LowRankOutput(slice(0, 16), slice(0, 3), q), LowRankOutput(slice(16, 24), slice(3, 6), k)],
    )
    single = LowRank(torch.randn(3, 40, generator=draw), [LowRankOutput(slice(0, 16), slice(0, 3), o)])
    return [fused, None if number == 2 else single]


def outputs(linears: list[Linear], inputs: list[Tensor]) -> list[Tensor]:
    with torch.inference_mode():
        return [linear(x) for linear, x in zip(linears, inputs, strict=True)]


def test_products_and_slots(linears: list[Linear]) -> None:
    draw = torch.Generator().manual_seed(2)
    inputs = [torch.randn(9, width, generator=draw) for _, width in SHAPES]
    plain = outputs(linears, inputs)
    segmented = SegmentedAdapters(linears)
    steps = [([1, 0, 2], [1, 5, 3]), ([3, 3, 1], [2, 2, 5]), ([0, 0], [4, 5]), ([2], [9]), ([], [9])]
    for number in (1, 2, 3):
        segmented.add(number, matrices(number))
    expected = []
    for step in steps:
        segmented.plan(batch(*step))
        expected.append(outputs(linears, inputs))
    stacked = StackedAdapters(linears, SOURCES, CONFIG, torch.float32)
    for number in (1, 2, 3):
        stacked.add(number, matrices(number))
    resident = []
    for step, wanted in zip(steps, expected, strict=True):
        stacked.plan(batch(*step))
        for ours, theirs in zip(outputs(linears, inputs), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        resident.append(stacked.resident())
    assert resident == [{1, 2}, {1, 3}, {1, 3}, {2, 3}, {2, 3}]
    assert stacked.load_s > 0
    assert all(map(torch.equal, expected[2], plain))
    stacked.remove(2)
    assert 2 not in stacked.resident()
