"""What layers ask of an implementation of their small computations."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Rotation:
    """By what angles the heads of a step's tokens are turned."""

    def __init__(self, table: Tensor, positions: Tensor, interleaved: bool) -> None:
        """table: [num_positions, rotary_dim] fp32, cosines in the first half and sines in the second; positions:
        [num_tokens] int64; interleaved: whether pairs are neighbours in the checkpoint's heads, or a head's halves.
        """
        self.table = table
        self.positions = positions
        self.interleaved = interleaved
        self._cos_sin: tuple[Tensor, ...] = ()

    def cos_sin(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Of every token, [num_tokens, 1, rotary_dim / 2] each; gathered once for all layers."""
        if not self._cos_sin or self._cos_sin[0].dtype != dtype:
            self._cos_sin = self.table[self.positions].to(dtype).unsqueeze(1).chunk(2, dim=-1)
        return self._cos_sin


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Root mean square norms of heads, as Qwen3 has them of queries and of keys."""

    weight: Tensor  # [num_heads, head_dim], a row for each head
    counts: tuple[int, ...]  # of neighbours that have the same weight: their rows are equal
    eps: float


class LayerOps(Protocol):
    """Computations on rows, in fp32 whatever the rows' dtype, of which a row's result depends on that row alone."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x: [..., size], its last dimension contiguous; weight: [size]. Returns the same shape."""
        ...

    def add_rms_norm(self, x: Tensor, addend: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """The sum of two tensors [num_tokens, size], and its norm. Both tensors may be overwritten."""
        ...

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up: [num_tokens, 2 * size], the gate first. Returns [num_tokens, size]."""
        ...

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: [num_tokens, size], its last dimension contiguous. Returns it as uint8 around 128, and each row's scale.

        A row is `(result - 128) * scale`, with a scale of max(|row|) / 127, [num_tokens] fp32: elements are rounded to
        the nearest, to the even one of two. The scale of a row that is not finite is not finite.
        """
        ...

    def scale(self, x: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
        """Each row of [num_tokens, size] times its scale, plus a bias [size]. `x` may be overwritten."""
        ...

    def weighted_sum(self, rows: Tensor, places: Tensor | None, weights: Tensor) -> Tensor:
        """Sums of each token's rows, which are `places[token * num_chosen + choice]`, times their weights.

        rows: [num_rows, size], may be overwritten; places: [num_tokens * num_chosen] int64, None for all rows in their
        order; weights: [num_tokens, num_chosen] fp32. Returns [num_tokens, size], added in the order of choices.
        """
        ...

    def rotate(self, heads: Tensor, rotation: Rotation, norms: HeadNorms | None = None) -> Tensor:
        """Heads turned by their tokens' positions, each after its norm where there are norms.

        heads: [num_tokens, num_heads, rotary_dim], may be overwritten; norms: of all of them. Returns the shape of
        heads. Interleaved pairs come out as halves: queries and keys alike, so that their products are the
        same.
        """
        ...
