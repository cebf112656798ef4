"""Gated norm of a Mamba-2 mixer's output."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.layers.recurrent.rank_parts import RankParts
from baton.engine.mamba import Mamba2Config


class GatedGroupNorm:
    """RMS norm of each group's heads, and their gates; in float32."""

    def __init__(
        self,
        config: Mamba2Config,
        weight: Tensor | None,
        eps: float,
        num_groups: int,
        means_of: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """weight: [width] float32, of this rank's heads; None: there are only gates; num_groups: of these heads.

        means_of: from the means [num_tokens, num_groups] of these heads' groups to those of all heads of these groups,
        if other parts have some of them.
        """
        self.config = config
        self.weight = weight
        self.eps = eps
        self.num_groups = num_groups
        self.means_of = means_of

    def __call__(self, heads: Tensor, gates: Tensor) -> Tensor:
        """Return the norm of heads [num_tokens, width] float32, in the same shape; `heads` may be overwritten."""
        gates = F.silu(gates.float() * self.config.multipliers.gates)
        if self.weight is None:
            return heads.mul_(gates)
        if self.config.gate_place == "after_norm":
            return self._normed(heads, self.weight).mul_(gates)
        return self._normed(heads.mul_(gates), self.weight)

    def _normed(self, heads: Tensor, weight: Tensor) -> Tensor:
        groups = heads.view(len(heads), self.num_groups, -1)
        means = groups.square().mean(-1)  # [num_tokens, num_groups]
        means = means if self.means_of is None else self.means_of(means)
        return (groups * torch.rsqrt(means + self.eps).unsqueeze(-1)).flatten(1).mul_(weight)


@dataclass(frozen=True, slots=True)
class DividedGroups:
    """Groups whose heads are divided among several parts, which may be on several ranks."""

    num_groups: int  # of the whole layer
    parts: RankParts

    def __call__(self, means: Tensor) -> Tensor:
        """Return for the means [num_tokens, parts] of this rank's parts those of their groups, in the same shape."""
        parts = self.parts
        ours = slice(parts.first, parts.first + parts.count)
        every = means.new_zeros(len(means), parts.num_parts)
        if parts.is_first_holder:
            every[:, ours] = means
        every = parts.tensor.sum(every)
        by_group = every.view(len(means), self.num_groups, -1).mean(-1)
        return by_group.repeat_interleave(parts.num_parts // self.num_groups, dim=1)[:, ours]


def load_gated_norm(
    weights: Weights, prefix: str, config: Mamba2Config, eps: float, parts: RankParts
) -> GatedGroupNorm:
    """Load the norm `prefix`.weight of a rank's parts."""
    weight = None
    if config.gate_place != "no_norm":
        part = (parts.of(config.num_heads, config.head_dim),)
        weight = weights.take(f"{prefix}.weight", config.width, dtype=torch.float32, part=part)
    num_groups = config.part(parts.num_parts).num_groups * parts.count
    is_divided = parts.num_parts > config.num_groups
    return GatedGroupNorm(
        config, weight, eps, num_groups, DividedGroups(config.num_groups, parts) if is_divided else None
    )
