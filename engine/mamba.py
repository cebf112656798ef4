"""Sizes of Mamba-2 mixers (arXiv 2405.21060): plain data, no torch."""

from dataclasses import dataclass, replace
from math import inf, prod
from typing import Literal

GatePlace = Literal["before_norm", "after_norm", "no_norm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputMultipliers:
    """Factors on a mixer's input, and on the parts of its projection."""

    input: float = 1.0
    gates: float = 1.0
    values: float = 1.0
    writes: float = 1.0  # B
    reads: float = 1.0  # C
    steps: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Config:
    """Layers with a Mamba-2 mixer, and their sizes."""

    layers: tuple[int, ...]  # in order
    num_heads: int
    head_dim: int
    num_groups: int  # of heads; the heads of a group share B and C
    state_dim: int  # width of a group's B and C
    conv_size: int  # tokens that the convolution reads
    has_conv_bias: bool = True
    has_input_bias: bool = False
    has_output_bias: bool = False
    step_limits: tuple[float, float] = (0.0, inf)
    gate_place: GatePlace = "before_norm"
    multipliers: InputMultipliers = InputMultipliers()
    output_multiplier: float = 1.0

    @property
    def width(self) -> int:
        """Width of all heads, and of the gates of the output."""
        return self.num_heads * self.head_dim

    @property
    def group_width(self) -> int:
        """Width of a group's heads."""
        return self.width // self.num_groups

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: all heads, and all groups' B and C."""
        return self.width + 2 * self.num_groups * self.state_dim

    @property
    def output_width(self) -> int:
        """Width of all heads' outputs."""
        return self.width

    def part(self, num_parts: int) -> "Mamba2Config":
        """Return the sizes of one of `num_parts` equal parts, each with some heads.

        With fewer groups than parts, each part has some heads of one group, whose B and C several parts compute.
        """
        return replace(self, num_heads=self.num_heads // num_parts, num_groups=max(1, self.num_groups // num_parts))

    def uneven(self, num_parts: int) -> list[str]:
        """Return the numbers, with their names, that do not allow `num_parts` equal parts."""
        uneven = [f"Mamba-2 heads {self.num_heads}"] if self.num_heads % num_parts else []
        if self.num_groups % num_parts and num_parts % self.num_groups:
            uneven.append(f"Mamba-2 groups {self.num_groups}")
        return uneven

    @property
    def state_size(self) -> int:
        """Numbers in a layer's state."""
        return sum(map(prod, self.state_shapes))

    @property
    def state_shapes(self) -> tuple[tuple[int, int], tuple[int, int, int]]:
        """Shapes of a layer's state: the convolution's last inputs, and a matrix of each group."""
        return (self.conv_size - 1, self.conv_width), (self.num_groups, self.state_dim, self.group_width)
