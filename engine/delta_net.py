"""Sizes of gated delta nets (arXiv 2412.06464): plain data, no torch."""

from dataclasses import dataclass, replace
from math import prod


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetConfig:
    """Layers with a gated delta net in place of attention, and their sizes."""

    layers: tuple[int, ...]  # in order
    num_key_heads: int
    num_value_heads: int
    key_dim: int  # of a head
    value_dim: int  # of a head
    conv_size: int  # tokens that the convolution in front of the net reads

    @property
    def keys_width(self) -> int:
        """Width of all keys, and of all queries."""
        return self.num_key_heads * self.key_dim

    @property
    def values_width(self) -> int:
        """Width of all values, and of the gates of the output."""
        return self.num_value_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: all queries, keys and values."""
        return 2 * self.keys_width + self.values_width

    @property
    def output_width(self) -> int:
        """Width of all heads' outputs."""
        return self.values_width

    def part(self, num_parts: int) -> "DeltaNetConfig":
        """Return the sizes of one of `num_parts` equal parts, each with some key heads and their value heads."""
        return replace(
            self, num_key_heads=self.num_key_heads // num_parts, num_value_heads=self.num_value_heads // num_parts
        )

    def uneven(self, num_parts: int) -> list[str]:
        """Return the numbers, with their names, that do not allow `num_parts` equal parts."""
        return [f"linear_num_key_heads {self.num_key_heads}"] if self.num_key_heads % num_parts else []

    @property
    def state_size(self) -> int:
        """Numbers in a layer's state."""
        return sum(map(prod, self.state_shapes))

    @property
    def state_shapes(self) -> tuple[tuple[int, int], tuple[int, int, int]]:
        """Shapes of a layer's state: the convolution's last inputs, and a matrix of each value head."""
        return (self.conv_size - 1, self.conv_width), (self.num_value_heads, self.key_dim, self.value_dim)
