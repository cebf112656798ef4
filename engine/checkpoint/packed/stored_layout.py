"""Tensors in which a packed matrix is stored, and the part of a matrix that is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.checkpoint.packed.grouped_matrix import GroupedMatrix
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel

ROWS_AT_ONCE = 256  # rows dequantised at once
FLOATS = ("float16", "bfloat16", "float32")


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One of the tensors of a packed matrix."""

    suffix: str  # appended to the module's name
    shapes: tuple[tuple[int, ...], ...]  # the allowed ones
    dtypes: tuple[str, ...]
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """Part of a packed matrix: some rows and columns of its whole number of them."""

    module: str
    num_rows: int
    num_columns: int
    rows: slice
    columns: slice

    @classmethod
    def of(cls, module: str, shape: tuple[int, ...], part: tuple[int | slice, ...]) -> "Wanted":
        """Return the part of a matrix of this shape that an index selects. Raises InvalidCheckpoint if not a matrix."""
        if len(shape) != 2:
            raise InvalidCheckpoint(f"{module} is packed, but the config needs {list(shape)}, which is not a matrix")
        rows, columns = (
            range(size)[index] for size, index in zip(shape, (*part, slice(None), slice(None)), strict=False)
        )
        assert isinstance(rows, range), "a packed matrix is indexed by slices"
        assert isinstance(columns, range), "a packed matrix is indexed by slices"
        return cls(module, *shape, slice(rows.start, rows.stop), slice(columns.start, columns.stop))

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns of the part."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start


class PackedLayout(Protocol):
    """Layout of packed matrices in a checkpoint's files."""

    def parts(self, num_rows: int, num_columns: int) -> list[StoredPart]:
        """Return the tensors of a matrix of this shape; the first marks that a module is stored in this layout."""
        ...

    def check(self, wanted: Wanted) -> None:
        """Raise UnsupportedModel or InvalidCheckpoint, naming the module, if the part cannot be read on its own."""
        ...

    def read(self, tensors: Mapping[str, Tensor], wanted: Wanted) -> GroupedMatrix:
        """Return a part of the matrix in the `tensors` by suffix, all on the host."""
        ...


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """View of a part of a packed matrix; nothing is converted before `read`. Valid while the files are mapped."""

    layout: PackedLayout
    tensors: Mapping[str, Tensor]
    wanted: Wanted

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return self.wanted.shape

    def read(self) -> GroupedMatrix:
        """Return a copy, on the host."""
        return self.layout.read(self.tensors, self.wanted)

    def copy_to(self, target: Tensor) -> None:
        """Dequantise to a tensor of the same shape, of any device and floating-point type."""
        matrix = self.read()
        for start in range(0, len(target), ROWS_AT_ONCE):
            rows = slice(start, min(start + ROWS_AT_ONCE, len(target)))
            target[rows].copy_(matrix.dequantised(rows, torch.float32))


def check_groups(wanted: Wanted, group_size: int | None) -> None:
    """Raise InvalidCheckpoint if the columns of a matrix do not divide into groups."""
    if group_size is not None and wanted.num_columns % group_size:
        raise InvalidCheckpoint(
            f"{wanted.module} has {wanted.num_columns} input columns, which groups of {group_size} do not divide"
        )


def check_outputs(wanted: Wanted, multiple: int) -> None:
    """Raise InvalidCheckpoint if a matrix's outputs do not fill the words in which they are stored."""
    if wanted.num_rows % multiple:
        raise InvalidCheckpoint(f"{wanted.module} has {wanted.num_rows} outputs, which is not a multiple of {multiple}")


def check_multiple(wanted: Wanted, multiple: int) -> None:
    """Raise UnsupportedModel if a rank's columns begin or end within a stored unit of columns."""
    if wanted.num_columns % multiple:
        raise InvalidCheckpoint(
            f"{wanted.module} has {wanted.num_columns} input columns: must be multiples of {multiple}"
        )
    if wanted.columns.start % multiple or wanted.columns.stop % multiple:
        raise UnsupportedModel(
            f"{wanted.module} cannot be divided among ranks: columns {wanted.columns.start} to {wanted.columns.stop} "
            f"are not whole units of {multiple}; use fewer tensor-parallel ranks"
        )
