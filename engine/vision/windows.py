"""Order of an image's patches in the encoder, which keeps those of a window together."""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Windows:
    """An order of an image's tokens, and the sizes of the windows in it; windows of equal size follow each other."""

    order: Tensor  # [num_tokens] int64: index of the token at each place
    groups: tuple[tuple[int, int], ...]  # number of windows, and tokens of each of them


def windows_of(rows: int, columns: int, size: int) -> Windows:
    """Divide `rows` x `columns` tokens into windows of at most `size` x `size`, smaller ones at the far edges."""
    index = torch.arange(rows * columns).view(rows, columns)
    by_size: dict[int, list[Tensor]] = defaultdict(list)
    for row in range(0, rows, size):
        for column in range(0, columns, size):
            window = index[row : row + size, column : column + size].flatten()
            by_size[len(window)].append(window)
    order = torch.cat([window for windows in by_size.values() for window in windows])
    return Windows(order, tuple((len(windows), size) for size, windows in by_size.items()))
