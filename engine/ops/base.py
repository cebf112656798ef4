"""Interface of the row operations that layers use."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.activation import Activation


class Rotation:
    """Rotary angles of a step's tokens."""

    def __init__(self, table: Tensor, positions: Tensor, interleaved: bool, query_scale: Tensor | None = None) -> None:
        """table: [num_positions, rotary_dim] fp32, cosines in the first half and sines in the second.

        positions: [num_tokens] int64; interleaved: pairs are adjacent in the checkpoint's heads, not half a head apart;
        query_scale: [num_tokens] fp32, factors on the rotated queries, None for 1.
        """
        self.table = table
        self.positions = positions
        self.interleaved = interleaved
        self.query_scale = query_scale
        self._cos_sin: tuple[Tensor, ...] = ()

    def cos_sin(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return cos and sin of every token, [num_tokens, 1, rotary_dim / 2] each; gathered once for all layers."""
        if not self._cos_sin or self._cos_sin[0].dtype != dtype:
            self._cos_sin = self.table[self.positions].to(dtype).unsqueeze(1).chunk(2, dim=-1)
        return self._cos_sin


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norms of query and key heads, as in Qwen3."""

    weight: Tensor  # [num_heads, head_dim], one row per head
    counts: tuple[int, ...]  # sizes of the runs of adjacent heads with the same weight
    eps: float
    offset: float = 0.0  # added to the weight in fp32


class LayerOps(Protocol):
    """Row operations, in fp32 whatever the rows' dtype; a row's result depends on that row alone."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        """Return the RMS norm of x [..., size], whose last dimension must be contiguous.

        weight: [size]; offset: added to the weight in fp32, 1 in Gemma.
        """
        ...

    def add_rms_norm(
        self, x: Tensor, addend: Tensor, weight: Tensor, eps: float, offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return the sum of two tensors [num_tokens, size] and its RMS norm. Both inputs may be overwritten."""
        ...

    def gate_and_mul(self, gate_up: Tensor, activation: Activation = "silu") -> Tensor:
        """Return activation(gate) * up, [num_tokens, size], of gate_up [num_tokens, 2 * size], the gate first.

        activation: silu, gelu_tanh, or clamped_swiglu: gate * sigmoid(1.702 * gate) * (up + 1), with the gate at most 7
        and up between -7 and 7 (GPT-OSS).
        """
        ...

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Quantise x [num_tokens, size], last dimension contiguous, to uint8 around 128 with a scale per row.

        A row is approximately `(result - 128) * scale`, with scale = max(|row|) / 127, [num_tokens] fp32. Elements are
        rounded to nearest, ties to even. A row that is not finite has a scale that is not finite.
        """
        ...

    def scale(self, x: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply each row of x [num_tokens, size] by its scale and add a bias [size]. `x` may be overwritten."""
        ...

    def weighted_sum(self, rows: Tensor, places: Tensor | None, weights: Tensor) -> Tensor:
        """Sum each token's rows, weighted; expert `i` of a token has row `places[token * num_chosen + i]`.

        rows: [num_rows, size], may be overwritten; places: [num_tokens * num_chosen] int64, None for all rows in order;
        weights: [num_tokens, num_chosen] fp32. Returns [num_tokens, size], added in routing order.
        """
        ...

    def rotate(self, heads: Tensor, rotation: Rotation, norms: HeadNorms | None = None) -> Tensor:
        """Rotate heads by their tokens' positions, each after its norm if there are norms.

        heads: [num_tokens, num_heads, head_dim], may be overwritten; norms: of all heads. Returns the shape of heads.
        Only the first rotary_dim dimensions are rotated. Interleaved pairs are returned as halves of them; this is the
        same for queries and keys, so their products are unchanged.
        """
        ...
