"""Groups of columns that share a scale, in a part of a matrix."""

import math

import torch
from torch import Tensor

from baton.engine.checkpoint.packed.stored_layout import Wanted
from baton.engine.errors import InvalidCheckpoint


def group_index(columns: slice, size: int) -> Tensor:
    """Return the stored group of each group of a part, for stored groups of `size` columns.

    A part that begins or ends within a stored group has smaller groups, several of which share a stored scale.
    """
    width = math.gcd(size, columns.start, columns.stop - columns.start)
    return torch.arange(columns.start, columns.stop, width) // size


def column_groups(stored: Tensor | None, wanted: Wanted, size: int) -> Tensor | None:
    """Return the group of each column of a part, int32; None if groups are adjacent, as they usually are.

    stored: the groups of all columns (`desc_act`), if the file has them. Raises InvalidCheckpoint for missing groups.
    """
    if stored is None:
        return None
    num_groups = wanted.num_columns // size
    if int(stored.min()) < 0 or int(stored.max()) >= num_groups:
        raise InvalidCheckpoint(f"{wanted.module}.g_idx names groups other than 0 to {num_groups - 1}")
    if torch.equal(stored, (torch.arange(wanted.num_columns) // size).to(stored.dtype)):
        return None
    return stored[wanted.columns].to(torch.int32, copy=True)


def as_zeros(zeros: Tensor, bits: int) -> Tensor | None:
    """Return zero points in the smallest type; None if all of them are the middle code."""
    if bool((zeros == 1 << (bits - 1)).all()):
        return None
    return zeros.to(torch.uint8 if bits < 8 else torch.int16).contiguous()
