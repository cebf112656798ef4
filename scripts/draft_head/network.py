"""The network of EAGLE-3 (arXiv 2503.01840) for training; parameters have the names of published heads."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor, nn

EPS, THETA = 1e-6, 1e4
NUM_STATES = 3  # layers of the model that the head reads


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Sizes of a head."""

    hidden_size: int  # of the model
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    draft_vocab_size: int


class Attention(nn.Module):
    """Grouped-query attention whose input is twice as wide as its output."""

    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.sizes = sizes
        width, kv = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(2 * sizes.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(2 * sizes.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(2 * sizes.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(width, sizes.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention of x [num_windows, num_rows, 2 * hidden] to earlier rows."""
        q, k, v = (
            project(x).unflatten(2, (-1, self.sizes.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = F.scaled_dot_product_attention(_rotated(q), _rotated(k), v, is_causal=True, enable_gqa=True)
        output: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return output


class GatedMLP(nn.Module):
    """Gated MLP."""

    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.up_proj = nn.Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.down_proj = nn.Linear(sizes.intermediate_size, sizes.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for x [..., hidden]."""
        output: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class Layer(nn.Module):
    """The one layer of the head."""

    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.hidden_norm = nn.RMSNorm(sizes.hidden_size, EPS)
        self.input_layernorm = nn.RMSNorm(sizes.hidden_size, EPS)
        self.post_attention_layernorm = nn.RMSNorm(sizes.hidden_size, EPS)
        self.self_attn = Attention(sizes)
        self.mlp = GatedMLP(sizes)

    def forward(self, embeddings: Tensor, states: Tensor) -> Tensor:
        """Return the next hidden states, [num_windows, num_rows, hidden], as both inputs are."""
        joined = torch.cat([self.input_layernorm(embeddings), self.hidden_norm(states)], dim=-1)
        states = states + self.self_attn(joined)
        output: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return output


class Head(nn.Module):
    """A head of EAGLE-3 that shares the model's embedding."""

    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.fc = nn.Linear(NUM_STATES * sizes.hidden_size, sizes.hidden_size, bias=False)
        self.midlayer = Layer(sizes)
        self.norm = nn.RMSNorm(sizes.hidden_size, EPS)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.draft_vocab_size, bias=False)

    def forward(self, embeddings: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [num_windows, num_rows, draft_vocab_size] and the next hidden states.

        states: [num_windows, num_rows, hidden]: `fc` of the model's, or earlier output.
        """
        states = self.midlayer(embeddings, states)
        return self.lm_head(self.norm(states)), states


def _rotated(x: Tensor) -> Tensor:
    """Return queries or keys [..., num_rows, width] after the rotary embedding."""
    width = x.shape[-1]
    angles = torch.outer(torch.arange(x.shape[-2]), THETA ** (-torch.arange(0, width, 2) / width))
    one, two = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)
