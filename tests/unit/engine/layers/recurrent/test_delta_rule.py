"""The gated delta rule in chunks gives the outputs and states of its definition, however the tokens are cut."""

import pytest
import torch
from torch import Tensor

from baton.engine.layers.recurrent.delta_rule import CHUNK, chunk_rule, step_rule

HEADS, KEY_DIM, VALUE_DIM = 4, 16, 24


def drawn(num_tokens: int) -> list[Tensor]:
    """Return queries, keys, values, decays (slow and fast ones) and rates."""
    generator = torch.Generator().manual_seed(num_tokens)
    q, k = torch.randn(2, HEADS, num_tokens, KEY_DIM, generator=generator)
    v = torch.randn(HEADS, num_tokens, VALUE_DIM, generator=generator)
    decay = -torch.rand(HEADS, num_tokens, generator=generator) * torch.tensor([[0.001], [0.1], [3.0], [90.0]])
    rate = torch.rand(HEADS, num_tokens, generator=generator)
    return [q, torch.nn.functional.normalize(k, dim=-1), v, decay, rate]


def by_definition(inputs: list[Tensor], state: Tensor) -> Tensor:
    """Return the outputs token by token in float64; updates `state`."""
    outputs = []
    for q, k, v, decay, rate in zip(*(each.double().unbind(1) for each in inputs), strict=True):
        for head in range(HEADS):
            matrix = state[head] * decay[head].exp()
            state[head] = matrix + torch.outer(k[head], rate[head] * (v[head] - k[head] @ matrix))
        outputs.append(torch.einsum("hk,hkv->hv", q, state))
    return torch.stack(outputs, dim=1)


@pytest.mark.parametrize("cuts", [(150,), (1, 149), (CHUNK, 86), (7, 70, 73)])
def test_chunks_give_the_outputs_of_the_definition(cuts: tuple[int, ...]) -> None:
    inputs, exact = drawn(150), torch.zeros(HEADS, KEY_DIM, VALUE_DIM, dtype=torch.float64)
    expected, state = by_definition(inputs, exact), exact.float() * 0
    parts = zip(*(each.split(cuts, dim=1) for each in inputs), strict=True)
    outputs = torch.cat([chunk_rule(*part, state) for part in parts], dim=1)
    torch.testing.assert_close(outputs.double(), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(state.double(), exact, atol=1e-5, rtol=1e-4)


def test_steps_of_several_sequences_give_the_outputs_of_the_definition() -> None:
    sequences = [drawn(20), [each * 0.5 for each in drawn(20)]]
    exact = torch.zeros(2, HEADS, KEY_DIM, VALUE_DIM, dtype=torch.float64)
    expected = torch.stack([by_definition(inputs, state) for inputs, state in zip(sequences, exact, strict=True)])
    state, outputs = torch.zeros(2, HEADS, KEY_DIM, VALUE_DIM), []
    for token in range(20):
        q, k, v, decay, rate = (torch.stack(pair)[:, :, token] for pair in zip(*sequences, strict=True))
        outputs.append(step_rule(q, k, v, decay, rate, state))
    torch.testing.assert_close(torch.stack(outputs, dim=2).double(), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(state.double(), exact, atol=1e-5, rtol=1e-4)
