"""Rotary position embedding (arXiv 2104.09864) and its scalings."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from baton.engine.ops.base import Rotation
from baton.engine.rope import RopeConfig


class RotaryEmbedding:
    """Table of cos and sin of every position, computed once in fp32 and shared by all layers."""

    def __init__(self, config: RopeConfig, max_positions: int, device: torch.device) -> None:
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), inverse_frequencies(config))
        # [max_positions, rotary_dim], cos in the first half and sin in the second, as GPU kernels expect
        self.table = (torch.cat([angles.cos(), angles.sin()], dim=-1) * config.cos_sin_scale).to(device)
        self.config = config

    def at(self, positions: Tensor) -> Rotation:
        """Return the rotation of a step's tokens. positions: [num_tokens]."""
        if not self.config.query_scaling_beta:
            return Rotation(self.table, positions, self.config.interleaved)
        times = ((positions + self.config.query_scaling_offset) // self.config.original_max_position_embeddings).float()
        return Rotation(
            self.table, positions, self.config.interleaved, 1 + self.config.query_scaling_beta * times.log1p()
        )

    def at_axes(self, positions: Tensor, sections: Sequence[int]) -> Rotation:
        """Return the rotation of tokens with a position for each axis (M-RoPE, arXiv 2409.12191, section 2.1).

        positions: [num_axes, num_tokens]; sections: numbers of rotated pairs that follow each axis. The rotation has a
        table of its own with a row for each token, so that backends rotate as usual.
        """
        axes = torch.repeat_interleave(torch.tensor(sections)).repeat(2).to(positions.device)  # [rotary_dim]
        columns = torch.arange(len(axes), device=positions.device)
        table = self.table[positions[axes].T, columns].contiguous()  # kernels read rows
        return Rotation(table, torch.arange(len(table), device=positions.device), self.config.interleaved)


def inverse_frequencies(config: RopeConfig) -> Tensor:
    """Return the radians per position of each pair, [rotary_dim / 2] fp32."""
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
    plain = 1.0 / config.theta**exponents
    if config.kind == "linear":
        return plain / config.factor
    if config.kind == "llama3":
        return _llama3(config, plain)
    if config.kind == "yarn":
        return _yarn(config, plain)
    if config.kind == "longrope":
        return plain / torch.tensor(config.divisors)
    if config.kind == "proportional":
        plain[int(config.proportion * config.rotary_dim // 2) :] = 0
        return plain / config.factor
    return plain


def _llama3(config: RopeConfig, plain: Tensor) -> Tensor:
    """Scale as in Llama 3.1: low frequencies are divided by `factor`, high ones kept, those between interpolated.

    Llama 4 Scout has none between.
    """
    turns = config.original_max_position_embeddings * plain / (2 * math.pi)  # over the original context
    low, high = config.low_freq_factor, config.high_freq_factor
    share = ((turns - low) / (high - low)).clamp(0, 1) if low < high else (turns >= low).float()
    return (1 - share) * plain / config.factor + share * plain


def _yarn(config: RopeConfig, plain: Tensor) -> Tensor:
    """Scale as in YaRN (arXiv 2309.00071, section 3.2), with a linear ramp over the pairs' indices."""

    def pair_with(turns: float) -> float:
        context = config.original_max_position_embeddings
        return config.rotary_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = pair_with(config.beta_fast), pair_with(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rotary_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    slowed = ((torch.arange(config.rotary_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / config.factor * slowed + plain * (1 - slowed)
