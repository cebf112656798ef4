"""A matrix as stored in a checkpoint's files: plain, or in FP8 with scales."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROWS_AT_ONCE = 256  # rows dequantised at once, to avoid an fp32 copy of the whole matrix

# Index of the wanted part of a tensor; () is the whole tensor.
Part = tuple[int | slice, ...]
WHOLE: Part = ()


@dataclass(frozen=True, slots=True)
class StoredScales:
    """Scales of a matrix's rows: one per row, or one per block of columns in each row."""

    grid: Tensor  # [rows, column blocks] fp32
    width: int | None = None  # columns per block; None: one block, the whole row
    offset: int = 0  # of the first column within the first block, if a part starts inside a block

    def of(self, rows: slice, num_columns: int) -> Tensor:
        """Return the scales of some rows, broadcastable to them: [rows, num_columns] or [rows, 1]."""
        if self.width is None:
            return self.grid[rows]
        return self.grid[rows].repeat_interleave(self.width, 1)[:, self.offset : self.offset + num_columns]


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """View of a stored matrix (or any other tensor), or of a part of it. Valid while the files are mapped."""

    values: Tensor  # as stored
    scales: StoredScales | None = None  # only if the values are in FP8

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        return tuple(self.values.shape)

    def copy_to(self, target: Tensor) -> None:
        """Copy to a tensor of the same shape, converting dtype and device; FP8 is dequantised."""
        if self.scales is None:
            target.copy_(self.values)
            return
        num_rows, num_columns = self.values.shape
        for start in range(0, num_rows, ROWS_AT_ONCE):
            rows = slice(start, min(start + ROWS_AT_ONCE, num_rows))
            exact = self.values[rows].to(target.device).float()
            target[rows].copy_(exact.mul_(self.scales.of(rows, num_columns).to(target.device)))


def scale_shapes(shape: Sequence[int], block: tuple[int, int] | None) -> list[tuple[int, ...]]:
    """Return the shapes allowed for the scales of a tensor [..., rows, columns] of one or more matrices."""
    *several, num_rows, num_columns = shape
    if block is not None:
        return [(*several, -(-num_rows // block[0]), -(-num_columns // block[1]))]
    ends = ((num_rows, 1), (num_rows,), (1, 1), (1,), ())
    return [(*several, *end) for end in ends]


def part_of_scales(stored: Tensor, shape: Sequence[int], block: tuple[int, int] | None, part: Part) -> StoredScales:
    """Return the scales of a part of one matrix.

    stored: all scales of the tensor, in one of `scale_shapes`; part: index of one matrix of the tensor and some of its
    rows and columns.
    """
    *several, num_rows, num_columns = shape
    which, inner = part[: len(several)], [*part[len(several) :], slice(None), slice(None)]
    rows, columns = _range(num_rows, inner[0]), _range(num_columns, inner[1])
    if block is None:
        each = stored.reshape(*several, -1)[which].float()  # one per row, or one for all
        return StoredScales(each.expand(num_rows)[rows.start : rows.stop, None].clone())
    block_rows, width = block
    column_blocks = slice(columns.start // width, -(-columns.stop // width))
    row_blocks = torch.arange(rows.start, rows.stop) // block_rows
    return StoredScales(stored[which][row_blocks, column_blocks].float(), width, columns.start % width)


def _range(size: int, part: int | slice) -> range:
    assert isinstance(part, slice), "an FP8 matrix is indexed by slices of rows and columns"
    return range(size)[part]
