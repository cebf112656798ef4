"""Recurrent states after drafted tokens have the bits that they would have after as many steps."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from baton.engine.delta_net import DeltaNetConfig
from baton.engine.execution.drafted_states import DraftedStates
from baton.engine.execution.state_blocks import Run, StateBlocks, stepwise_runs
from baton.engine.kv.layer_states import LayerStates
from baton.engine.kv.state_layout import StatePlace
from baton.engine.layers.norm import RMSNorm
from baton.engine.layers.recurrent.causal_conv import CausalConv
from baton.engine.layers.recurrent.delta_net import DeltaNetPart
from baton.engine.layers.recurrent.mamba import HeadParameters, MambaPart
from baton.engine.mamba import Mamba2Config

CONV_SIZE, BLOCK_ITEMS = 4, 2048
NEW = 3  # row of a sequence that begins
# Widths of the convolution are multiples of 32: torch computes SiLU of the rest of a tensor by another function.
PROMPT = 5  # tokens of the sequence behind those with drafts
DELTA_NET = DeltaNetConfig(
    layers=(0,), num_key_heads=2, num_value_heads=4, key_dim=16, value_dim=16, conv_size=CONV_SIZE
)
MAMBA = Mamba2Config(layers=(0,), num_heads=6, head_dim=16, num_groups=2, state_dim=16, conv_size=CONV_SIZE)


def states_of(config: DeltaNetConfig | Mamba2Config) -> LayerStates:
    assert config.state_size <= BLOCK_ITEMS
    return LayerStates(StatePlace(slice(0, 1), slice(0, BLOCK_ITEMS)), config.state_shapes)


def delta_net() -> DeltaNetPart:
    conv, heads = CausalConv(torch.randn(CONV_SIZE, DELTA_NET.conv_width)), DELTA_NET.num_value_heads
    norm = RMSNorm(torch.ones(DELTA_NET.value_dim), 1e-6)
    return DeltaNetPart(DELTA_NET, conv, -torch.rand(heads), torch.randn(heads), norm, states_of(DELTA_NET))


def mamba() -> MambaPart:
    conv = CausalConv(torch.randn(CONV_SIZE, MAMBA.conv_width), torch.randn(MAMBA.conv_width))
    heads = HeadParameters(-torch.rand(MAMBA.num_heads), torch.randn(MAMBA.num_heads), torch.randn(MAMBA.num_heads))
    return MambaPart(MAMBA, conv, heads, states_of(MAMBA))


def inputs_of(part: DeltaNetPart | MambaPart, num_tokens: int) -> list[Tensor]:
    mixed = torch.randn(num_tokens, part.config.conv_width, dtype=torch.bfloat16)
    if isinstance(part, MambaPart):
        return [mixed, torch.rand(num_tokens, MAMBA.num_heads)]
    decays, rates = torch.rand(2, num_tokens, DELTA_NET.num_value_heads)
    return [mixed, -decays, rates]


def blocks_of(
    sources: Sequence[int], targets: Sequence[int], new: Sequence[int] = (), drafted: range = range(0)
) -> StateBlocks:
    nothing = torch.empty(0, dtype=torch.int64)
    tables = [torch.tensor(each, dtype=torch.int64).unsqueeze(1) for each in (sources, targets)]
    return StateBlocks(*tables, torch.tensor(new, dtype=torch.int64), nothing, drafted)


@pytest.mark.parametrize("make", [delta_net, mamba])
@pytest.mark.parametrize("counts", [(3, 1, 2, 0), (4, 4, 2, 2), (1, 2, 1, 1), (0, 0, 0, 0)])
def test_accepted_tokens_advance_states_as_steps_do(
    make: Callable[[], DeltaNetPart | MambaPart], counts: tuple[int, ...]
) -> None:
    torch.manual_seed(sum(counts))
    part = make()
    # A decode, four sequences with 3 drafts or 1, and a prompt. The first draft follows a checkpoint, the third begins.
    sources, targets = [1, 2, 4, 5, 6, 7], [1, 3, 4, 5, 6, 7]
    lengths = [1, 4, 4, 2, 2, PROMPT]
    inputs = inputs_of(part, sum(lengths))
    stepped, drafted = (torch.randn(8, BLOCK_ITEMS) for _ in range(2))
    drafted.copy_(stepped)
    before = drafted.clone()

    blocks = blocks_of(sources, targets, [NEW], range(1, 5))
    step = DraftedStates(blocks, lengths, drafted)
    step.record(part._advance, inputs)
    runs = [*stepwise_runs(lengths[:-1]), Run(slice(5, 6), PROMPT, False)]
    assert [(run.rows.stop - run.rows.start, run.length) for run in runs] == [(1, 1), (2, 4), (2, 2), (1, PROMPT)]
    outputs = part._advance(inputs, runs, drafted, blocks)
    assert torch.equal(drafted[2:7], before[2:7])
    step.accept(counts)

    starts = [sum(lengths[:row]) for row in range(len(lengths))]
    for row, count in enumerate((1, *counts)):
        source = sources[row]
        for place in range(count):
            token = slice(starts[row] + place, starts[row] + place + 1)
            one = blocks_of([source], [targets[row]], [0] if (row, place) == (NEW, 0) else [])
            output = part._advance([each[token] for each in inputs], stepwise_runs([1]), stepped, one)
            assert torch.equal(output, outputs[token])
            source = targets[row]
    assert torch.equal(drafted[:7, : part.config.state_size], stepped[:7, : part.config.state_size])
    assert not torch.equal(drafted[7], before[7]), "the prompt's state is written by the step itself"
