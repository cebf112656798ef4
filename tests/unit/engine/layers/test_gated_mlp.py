"""The gate of shared experts: its values, and that a row's bits do not depend on the other rows."""

import pytest
import torch

from baton.engine.layers.linear import Linear
from baton.engine.layers.linear_source import source_of_tensor
from baton.engine.layers.mlp import MLP
from baton.engine.layers.moe import GatedMLP, SharedGate

HIDDEN, INNER = 32, 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gate_scales_each_row_by_itself(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    mlp = MLP(Linear(drawn(2 * INNER, HIDDEN).to(dtype)), Linear(drawn(HIDDEN, INNER).to(dtype)))
    gate, x = drawn(1, HIDDEN), drawn(70, HIDDEN).to(dtype)
    gated = GatedMLP(mlp, SharedGate(gate, source_of_tensor("gate", 1, HIDDEN)))
    scales = gated(x) / mlp(x)
    expected = (x.float() @ gate.T).sigmoid().expand_as(x)
    torch.testing.assert_close(scales.float(), expected, atol=2e-2 if dtype == torch.bfloat16 else 1e-4, rtol=0)
    gated.mlp = lambda rows: torch.ones_like(rows)  # type: ignore[assignment]  # the gate alone
    whole = gated(x)
    for start, size in ((0, 1), (3, 2), (5, 17), (20, 50)):
        assert torch.equal(gated(x[start : start + size]), whole[start : start + size])
