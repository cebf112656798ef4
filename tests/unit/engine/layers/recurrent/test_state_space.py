"""The selective state space in chunks gives the outputs and states of its definition, however the tokens are cut."""

import pytest
import torch
from torch import Tensor

from baton.engine.layers.recurrent.state_space import CHUNK, SpaceInputs, scan_space, step_space

GROUPS, HEADS, HEAD_DIM, STATE_DIM = 2, 3, 8, 16
DECAYS = torch.tensor([[0.001, 0.1, 3.0], [90.0, 0.01, 1.0]])


def drawn(num_tokens: int, seed: int = 0) -> SpaceInputs:
    """Return values, writes, reads and decays (slow and fast ones)."""
    generator = torch.Generator().manual_seed(1000 * seed + num_tokens)
    x = torch.randn(num_tokens, GROUPS, HEADS, HEAD_DIM, generator=generator)
    b, c = torch.randn(2, num_tokens, GROUPS, STATE_DIM, generator=generator)
    return SpaceInputs(x, b, c, -torch.rand(num_tokens, GROUPS, HEADS, generator=generator) * DECAYS)


def joined(parts: list[SpaceInputs]) -> SpaceInputs:
    each = zip(*((part.x, part.b, part.c, part.decay) for part in parts), strict=True)
    return SpaceInputs(*map(torch.cat, each))


def cut(inputs: SpaceInputs, lengths: tuple[int, ...]) -> list[SpaceInputs]:
    parts = []
    for length in lengths:
        part, inputs = inputs.split(length)
        parts.append(part)
    return parts


def zeros(num_seqs: int) -> Tensor:
    return torch.zeros(num_seqs, GROUPS, STATE_DIM, HEADS * HEAD_DIM)


def by_definition(inputs: SpaceInputs, state: Tensor) -> Tensor:
    """Return the outputs token by token in float64; updates the state of one sequence."""
    outputs, matrix = [], state.view(GROUPS, STATE_DIM, HEADS, HEAD_DIM)
    for x, b, c, decay in zip(inputs.x, inputs.b, inputs.c, inputs.decay, strict=True):
        written = torch.einsum("gn,ghp->gnhp", b.double(), x.double())
        matrix.copy_(matrix * decay.double().exp()[:, None, :, None] + written)
        outputs.append(torch.einsum("gn,gnhp->ghp", c.double(), matrix))
    return torch.stack(outputs)


@pytest.mark.parametrize("cuts", [(150,), (2, 148), (CHUNK, 86), (7, 70, 73), (CHUNK, CHUNK, 22)])
def test_chunks_give_the_outputs_of_the_definition(cuts: tuple[int, ...]) -> None:
    inputs, exact = drawn(150), zeros(1).double()
    expected, state = by_definition(inputs, exact[0]), zeros(1)
    outputs = [scan_space(part, [length], state) for part, length in zip(cut(inputs, cuts), cuts, strict=True)]
    torch.testing.assert_close(torch.cat(outputs).double(), expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(state.double(), exact, atol=2e-5, rtol=1e-4)


def test_steps_of_several_sequences_give_the_outputs_of_the_definition() -> None:
    sequences = [drawn(20, seed) for seed in range(3)]
    exact, state = zeros(3).double(), zeros(3)
    expected = torch.stack([by_definition(inputs, row) for inputs, row in zip(sequences, exact, strict=True)])
    steps = zip(*(cut(inputs, (1,) * 20) for inputs in sequences), strict=True)
    outputs = torch.stack([step_space(joined(list(step)), state) for step in steps], dim=1)
    torch.testing.assert_close(outputs.double(), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(state.double(), exact, atol=1e-5, rtol=1e-4)


def test_the_bits_of_a_sequence_do_not_depend_on_the_others() -> None:
    lengths = (5, 150, CHUNK, 70)
    sequences = [drawn(length, seed) for seed, length in enumerate(lengths)]
    together, generator = zeros(len(lengths)), torch.Generator().manual_seed(0)
    together.normal_(generator=generator)
    alone = together.clone()
    outputs = scan_space(joined(sequences), lengths, together).split(lengths)
    for row, (inputs, length) in enumerate(zip(sequences, lengths, strict=True)):
        assert scan_space(inputs, [length], alone[row : row + 1]).equal(outputs[row])
    assert together.equal(alone)
    steps = [drawn(1, seed) for seed in range(len(lengths))]
    outputs = step_space(joined(steps), together).split(1)
    for row, inputs in enumerate(steps):
        assert step_space(inputs, alone[row : row + 1]).equal(outputs[row])
    assert together.equal(alone)
