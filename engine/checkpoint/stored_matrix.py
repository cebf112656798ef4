"""A matrix as it lies in a checkpoint's files: plain, or in FP8 beside its scales."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROWS_AT_ONCE = 256  # that are dequantised, so that no copy of a matrix in fp32 is made

# What is wanted of a tensor, as an index of its dimensions; () is all of it.
Part = tuple[int | slice, ...]
WHOLE: Part = ()


@dataclass(frozen=True, slots=True)
class StoredScales:
    """What each row is multiplied with: one number, or one for each stretch of its columns."""

    grid: Tensor  # [rows, stretches] fp32
    width: int | None = None  # of a stretch; None: there is one, the whole row
    offset: int = 0  # of the first column in the first stretch, where a part was cut out within one

    def of(self, rows: slice, num_columns: int) -> Tensor:
        """Of these rows, to be multiplied with: [rows, num_columns], or [rows, 1]."""
        if self.width is None:
            return self.grid[rows]
        return self.grid[rows].repeat_interleave(self.width, 1)[:, self.offset : self.offset + num_columns]


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A view of a matrix, or of any other tensor, or of a part of it. Valid for as long as the files are mapped."""

    values: Tensor  # as they are stored
    scales: StoredScales | None = None  # there are some if the values are in FP8

    def copy_to(self, target: Tensor) -> None:
        """Writes it in another dtype, on another device; of the same shape. In FP8 it is multiplied out on the way."""
        if self.scales is None:
            target.copy_(self.values)
            return
        num_rows, num_columns = self.values.shape
        for start in range(0, num_rows, ROWS_AT_ONCE):
            rows = slice(start, min(start + ROWS_AT_ONCE, num_rows))
            exact = self.values[rows].to(target.device).float()
            target[rows].copy_(exact.mul_(self.scales.of(rows, num_columns).to(target.device)))


def scale_shapes(shape: Sequence[int], block: tuple[int, int] | None) -> list[tuple[int, ...]]:
    """Which shapes the scales of a matrix, or of several ones in one tensor [..., rows, columns], may have."""
    *several, num_rows, num_columns = shape
    if block is not None:
        return [(*several, -(-num_rows // block[0]), -(-num_columns // block[1]))]
    ends = ((num_rows, 1), (num_rows,), (1, 1), (1,), ())
    return [(*several, *end) for end in ends]


def part_of_scales(stored: Tensor, shape: Sequence[int], block: tuple[int, int] | None, part: Part) -> StoredScales:
    """The scales of a part of one matrix.

    stored: all scales of the tensor, of one of `scale_shapes`; part: of the tensor, a matrix of it and some rows and
    columns.
    """
    *several, num_rows, num_columns = shape
    which, inner = part[: len(several)], [*part[len(several) :], slice(None), slice(None)]
    rows, columns = _range(num_rows, inner[0]), _range(num_columns, inner[1])
    if block is None:
        each = stored.reshape(*several, -1)[which].float()  # of each row, or one of all
        return StoredScales(each.expand(num_rows)[rows.start : rows.stop, None].clone())
    block_rows, width = block
    stretches = slice(columns.start // width, -(-columns.stop // width))
    above = torch.arange(rows.start, rows.stop) // block_rows
    return StoredScales(stored[which][above, stretches].float(), width, columns.start % width)


def _range(size: int, part: int | slice) -> range:
    assert isinstance(part, slice), "of a matrix in FP8 rows and columns are taken, never one of them"
    return range(size)[part]
