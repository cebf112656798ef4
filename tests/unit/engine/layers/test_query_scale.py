"""Queries that grow with the context."""

from typing import Any

import torch
from torch import Tensor

from baton.engine.kv.scales import UNSCALED
from baton.engine.layers.attention import GroupedQueryAttention
from baton.engine.ops.base import Rotation
from tests.unit.engine.attention_rig import model_config


class QueriesOnly:
    """A backend that returns the queries."""

    def forward(self, q: Tensor, *_: object) -> Tensor:
        return q


def test_the_factor_on_queries_is_not_rounded_to_their_type() -> None:
    """1 + 0.1 * ln(2) is 1.0693, and 1.0703 in bfloat16: an error that all queries would have in common."""
    identity: Any = torch.nn.Identity()
    backend: Any = QueriesOnly()
    config = model_config(None, "bfloat16", head_dim=64)
    attention = GroupedQueryAttention(config, identity, identity, None, UNSCALED, backend, rotates=False)
    rows = torch.randn(50, 8 * 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    scale = torch.full((50,), 1.0693147)
    batch: Any = None
    found = attention(rows, Rotation(torch.empty(0, 8), torch.arange(50), False, scale), torch.empty(0), batch)
    queries = rows[:, : 4 * 64]
    assert torch.equal(found, (queries.float() * scale[:, None]).bfloat16())
