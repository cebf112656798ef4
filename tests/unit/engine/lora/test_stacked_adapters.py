"""The products of adapters on GPUs, computed on a CPU, are those of the CPU's own ones."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.config import ModelConfig
from baton.engine.execution.batch import AdapterRun, Batch
from baton.engine.execution.cuda_graphs import NO_DECODES
from baton.engine.layers.embedding import Embedding
from baton.engine.layers.linear import Linear
from baton.engine.layers.linear_source import LinearSource, ProjectionRows
from baton.engine.lora import stacked as stacked_adapters
from baton.engine.lora.adaptable_layer import AdaptableLayer, Inputs
from baton.engine.lora.config import LoraConfig
from baton.engine.lora.low_rank import LowRank, LowRankOutput
from baton.engine.lora.segmented import SegmentedAdapters
from baton.engine.lora.stacked import SlotMatrices, StackedAdapters
from baton.engine.parallel.tensor_parallel import ONE_RANK

SIZES = ((24, 16), (16, 40), (16, 32))  # outputs and inputs of two Linears, and of an output layer
VOCAB_SIZE = 50
CONFIG = LoraConfig(enabled=True, max_loras=2, max_rank=4, max_cpu_loras=4)
SOURCES = [
    LinearSource([ProjectionRows("q", 16, slice(None)), ProjectionRows("k", 8, slice(None))], 16, slice(None)),
    LinearSource([ProjectionRows("o", 16, slice(None))], 40, slice(None)),
    LinearSource([ProjectionRows("lm_head", 16, slice(None))], 32, slice(None)),
    LinearSource([ProjectionRows("model.embed_tokens", 8, slice(None))], VOCAB_SIZE, slice(None)),
]
INPUTS = (Inputs.STATES, Inputs.STATES, Inputs.LAST_STATES, Inputs.TOKEN_IDS)
LAST_ROWS = [0, 4, 8]


def batch(adapters: Sequence[int], lengths: Sequence[int]) -> Batch:
    runs = tuple(map(AdapterRun, adapters, lengths))
    return replace(NO_DECODES, adapters=runs, query_lens_list=list(lengths), logits_indices=torch.tensor(LAST_ROWS))


@pytest.fixture
def layers() -> list[AdaptableLayer]:
    draw = torch.Generator().manual_seed(1)
    linears = [Linear(torch.randn(size, generator=draw), torch.randn(size[0], generator=draw)) for size in SIZES]
    config = cast(ModelConfig, SimpleNamespace(vocab_size=VOCAB_SIZE, embedding_multiplier=1))
    embedding = Embedding(torch.randn(VOCAB_SIZE, 8, generator=draw), ONE_RANK, config, torch.float32)
    return [AdaptableLayer(*each) for each in zip([*linears, embedding], SOURCES, INPUTS, strict=True)]


def matrices(number: int) -> list[LowRank | None]:
    """Return an adapter's matrices; the first one is DoRA, and the second one leaves a layer as it is."""
    draw = torch.Generator().manual_seed(number)

    def low_rank(inputs: int, *outputs: int) -> LowRank:
        parts, end = [], 0
        for place, size in enumerate(outputs):
            start, end = end, end + size
            gain = torch.randn(size, generator=draw) if number == 1 and inputs != VOCAB_SIZE else None
            b = torch.randn(size, 3, generator=draw)
            parts.append(LowRankOutput(slice(start, end), slice(3 * place, 3 * place + 3), b, gain))
        return LowRank(torch.randn(3 * len(outputs), inputs, generator=draw), parts)

    return [low_rank(16, 16, 8), None if number == 2 else low_rank(40, 16), low_rank(32, 16), low_rank(VOCAB_SIZE, 8)]


def outputs(layers: list[AdaptableLayer], inputs: list[Tensor]) -> list[Tensor]:
    with torch.inference_mode():
        return [each.layer(x) for each, x in zip(layers, inputs, strict=True)]


def test_products_and_slots(layers: list[AdaptableLayer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked_adapters, "NUM_RESCALED", 4)  # so that the rows are in several parts
    draw = torch.Generator().manual_seed(2)
    heights = (9, 9, len(LAST_ROWS))
    inputs = [torch.randn(height, width, generator=draw) for height, (_, width) in zip(heights, SIZES, strict=True)]
    inputs.append(torch.randint(VOCAB_SIZE, (9,), generator=draw))
    plain = outputs(layers, inputs)
    segmented = SegmentedAdapters(layers)
    steps = [([1, 0, 2], [1, 5, 3]), ([3, 3, 1], [2, 2, 5]), ([0, 0], [4, 5]), ([2], [9]), ([], [9])]
    for number in (1, 2, 3):
        segmented.add(number, matrices(number))
    expected = []
    for step in steps:
        segmented.plan(batch(*step))
        expected.append(outputs(layers, inputs))
    for ours, theirs in zip(expected[3], by_hand(layers, inputs, matrices(2), plain), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    stacked = StackedAdapters(layers, CONFIG, torch.float32)
    for number in (1, 2, 3):
        stacked.add(number, matrices(number))
    resident = []
    for step, wanted in zip(steps, expected, strict=True):
        stacked.plan(batch(*step))
        for ours, theirs in zip(outputs(layers, inputs), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        resident.append(stacked.resident())
    assert resident == [{1, 2}, {1, 3}, {1, 3}, {2, 3}, {2, 3}]
    assert stacked.load_s > 0
    assert all(map(torch.equal, expected[2], plain))
    stacked.remove(2)
    assert 2 not in stacked.resident()


def test_a_slot_that_was_not_filled_is_filled_by_the_next_step(
    layers: list[AdaptableLayer], monkeypatch: pytest.MonkeyPatch
) -> None:
    stacked, fill, filled = StackedAdapters(layers, CONFIG, torch.float32), SlotMatrices.fill, list[SlotMatrices]()

    def fill_two(slots: SlotMatrices, slot: int, matrices: LowRank | None) -> None:
        if len(filled) == 2:
            raise torch.OutOfMemoryError("no memory is left")
        filled.append(slots)
        fill(slots, slot, matrices)

    stacked.add(1, matrices(1))
    monkeypatch.setattr(SlotMatrices, "fill", fill_two)
    with pytest.raises(torch.OutOfMemoryError):
        stacked.plan(batch([1], [9]))
    assert not stacked.resident()
    monkeypatch.setattr(SlotMatrices, "fill", lambda slots, *_: filled.append(slots))
    stacked.plan(batch([1], [9]))
    assert len(filled) == 2 + len(layers)
    assert stacked.resident() == {1}


def by_hand(
    layers: list[AdaptableLayer], inputs: list[Tensor], added: list[LowRank | None], plain: list[Tensor]
) -> list[Tensor]:
    """Return the outputs if all rows use an adapter."""
    results = []
    for layer, x, each, output in zip(layers, inputs, added, plain, strict=True):
        vectors = x if layer.inputs is not Inputs.TOKEN_IDS else F.one_hot(x, VOCAB_SIZE).float()
        inner = vectors @ each.a.t() if each is not None else vectors
        parts = [inner[:, part.ranks] @ part.b.t() for part in each.outputs] if each is not None else []
        results.append(output + torch.cat(parts, 1) if parts else output)
    return results
