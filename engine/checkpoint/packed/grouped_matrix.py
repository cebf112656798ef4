"""Matrix of small integers with a scale per group of columns: the one form of all low-bit weights."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

# Values of E2M1 codes (OCP Microscaling Formats 1.0, section 5.3.3); the fourth bit is the sign.
_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = (*_POSITIVE, *(-value for value in _POSITIVE))
ROWS_AT_ONCE = 256  # rows sorted at once
WHOLE = ("groups", "table")  # tensors that have no rows


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedMatrix:
    """Codes of 4, 5, 6 or 8 bits in groups of columns; each row's group has a scale and a zero point or a minimum.

    An element is `scale * (code - zero) - minimum`, computed in fp32. Nothing is rounded when a checkpoint's matrix is
    brought into this form: scales keep their stored type, and those that are stored in two levels (GGUF's K-quants,
    NVFP4) keep both.
    """

    low: Tensor  # [rows, columns] uint8 for 8 bits; otherwise [rows, columns / 2], an even column in the lower 4 bits
    high: Tensor | None = None  # bits above the lower 4, [rows, columns * (bits - 4) / 8], the first column lowest
    bits: int
    scales: Tensor  # [rows, groups]
    zeros: Tensor | None = None  # [rows, groups] integers; None: the middle code, or 0 if there are minima
    minima: Tensor | None = None  # [rows, groups]; None: 0
    outer_scales: Tensor | None = None  # [rows, groups of groups], factors of `scales`
    outer_minima: Tensor | None = None  # factors of `minima`
    groups: Tensor | None = None  # [columns] int32, the group of each column; None: adjacent groups of the same width
    table: Tensor | None = None  # fp32 values of the codes; None: they are integers

    def __post_init__(self) -> None:
        """Raise ValueError unless all tensors have the same rows: native code relies on it."""
        lengths = {name: len(tensor) for name, tensor in self._tensors().items() if name not in WHOLE}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the tensors of a packed matrix have different numbers of rows: {lengths}")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.low), self.low.shape[1] * (1 if self.bits == 8 else 2)

    @property
    def width(self) -> int:
        """Columns of a group, if `groups` is None."""
        return self.shape[1] // self.scales.shape[1]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def dequantised(self, rows: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """Return some rows, or those with these indices, as [num_rows, columns] of a floating-point type.

        Elements are rounded once.
        """
        codes = self._codes(rows)
        values = self._grouped(codes.float() if self.table is None else self.table[codes.int()])
        if self.zeros is not None:
            values -= self._spread(self.zeros[rows].float())
        elif self.minima is None and self.table is None:
            values -= 1 << (self.bits - 1)
        values *= self._spread(_both(self.scales[rows], self.outer_scales, rows))
        if self.minima is not None:
            values -= self._spread(_both(self.minima[rows], self.outer_minima, rows))
        return values.flatten(1).to(dtype)

    def to(self, device: torch.device) -> "GroupedMatrix":
        """Return the matrix on a device."""
        return self._replaced({name: tensor.to(device) for name, tensor in self._tensors().items()})

    def rows(self, rows: slice) -> "GroupedMatrix":
        """Return a view of some rows."""
        return self._replaced({n: t if n in WHOLE else t[rows] for n, t in self._tensors().items()})

    def columns(self, columns: slice) -> "GroupedMatrix":
        """Return some columns, of a matrix with adjacent groups; their first and last are at multiples of 8.

        Groups of a part that begins or ends within a group are smaller, and several of them share a scale.
        """
        assert self.groups is None, "groups are adjacent"
        num_rows, num_columns = self.shape
        if columns == slice(0, num_columns):
            return self
        width = math.gcd(self.width, columns.start, columns.stop - columns.start)
        which = torch.arange(columns.start, columns.stop, width) // self.width
        every = slice(0, num_rows)
        minima = None if self.minima is None else _both(self.minima, self.outer_minima, every)[:, which]
        codes = self._codes(every)[:, columns].contiguous()
        return GroupedMatrix(
            low=codes if self.bits == 8 else packed(codes & 15, 4),
            high=None if self.high is None else packed(codes >> 4, self.bits - 4),
            bits=self.bits,
            scales=_both(self.scales, self.outer_scales, every)[:, which],  # exact in fp32, so one level suffices
            zeros=None if self.zeros is None else self.zeros[:, which],
            minima=minima,
            table=self.table,
        )

    def sorted(self, order: Tensor) -> "GroupedMatrix":
        """Return a matrix with its columns in an order in which groups are adjacent and of one size."""
        assert self.high is None, "formats that assign columns to groups have no codes of 5 or 6 bits"
        parts = []
        for start in range(0, len(self.low), ROWS_AT_ONCE):
            codes = self._codes(slice(start, start + ROWS_AT_ONCE))[:, order]
            parts.append(codes if self.bits == 8 else packed(codes, 4))
        return self._replaced({"low": torch.cat(parts)}, groups=None)

    def can_join(self, other: "GroupedMatrix") -> bool:
        """Return whether the rows of another matrix can follow this one's."""
        ours, theirs = self._tensors(), other._tensors()
        if (self.bits, ours.keys()) != (other.bits, theirs.keys()):
            return False
        same = all(ours[n].shape[1:] == theirs[n].shape[1:] and ours[n].dtype == theirs[n].dtype for n in ours)
        return same and (self.groups is None or (other.groups is not None and torch.equal(self.groups, other.groups)))

    @staticmethod
    def joined(parts: Sequence["GroupedMatrix"]) -> "GroupedMatrix":
        """Concatenate the rows of matrices that can be joined."""
        if len(parts) == 1:
            return parts[0]
        every = [part._tensors() for part in parts]
        names = [name for name in every[0] if name not in WHOLE]
        return parts[0]._replaced({name: torch.cat([each[name] for each in every]) for name in names})

    @staticmethod
    def collected(parts: Iterable["GroupedMatrix"], num_rows: int) -> "GroupedMatrix":
        """Concatenate matrices that can be joined as they are made, without keeping all of them."""
        whole: GroupedMatrix | None = None
        start = 0
        for part in parts:
            found = {name: tensor for name, tensor in part._tensors().items() if name not in WHOLE}
            if whole is None:
                whole = part._replaced({n: t.new_empty(num_rows, *t.shape[1:]) for n, t in found.items()})
            targets, end = whole._tensors(), start + len(part.low)
            for name, tensor in found.items():
                targets[name][start:end] = tensor
            start = end
        assert whole is not None, "a matrix has rows"
        return whole

    def _codes(self, rows: slice | Tensor) -> Tensor:
        """Return the codes of some rows as uint8 [num_rows, columns]."""
        low = self.low[rows]
        if self.bits == 8:
            return low
        codes = torch.stack([low & 15, low >> 4], 2).flatten(1)
        if self.high is None:
            return codes
        return codes | (unpacked(self.high[rows], self.bits - 4) << 4)

    def _grouped(self, values: Tensor) -> Tensor:
        """Return [num_rows, columns] as [num_rows, groups, width], or unchanged if groups are not adjacent."""
        return values if self.groups is not None else values.view(len(values), self.scales.shape[1], self.width)

    def _spread(self, of_groups: Tensor) -> Tensor:
        """Return [num_rows, groups] such that it broadcasts to the result of `_grouped`."""
        return of_groups.unsqueeze(2) if self.groups is None else of_groups.index_select(1, self.groups)

    def _tensors(self) -> dict[str, Tensor]:
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}

    def _replaced(self, tensors: dict[str, Tensor], **others: None) -> "GroupedMatrix":
        rest = {field.name: getattr(self, field.name) for field in fields(self)}
        return GroupedMatrix(**(rest | tensors | others))


def e2m1_table() -> Tensor:
    """Return the values of codes in E2M1."""
    return torch.tensor(E2M1, dtype=torch.float32)


def packed(codes: Tensor, bits: int) -> Tensor:
    """Pack uint8 codes [rows, columns] below 2 ** bits, bits 1, 2 or 4, the first column lowest in a byte."""
    rows, columns = codes.shape
    per_byte = 8 // bits
    parts = codes.view(rows, columns // per_byte, per_byte)
    result = parts[:, :, 0].clone()
    for place in range(1, per_byte):
        result |= parts[:, :, place] << (place * bits)
    return result


def unpacked(codes: Tensor, bits: int) -> Tensor:
    """Undo `packed`."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    return ((codes.unsqueeze(2) >> shifts) & ((1 << bits) - 1)).flatten(1)


def _both(inner: Tensor, outer: Tensor | None, rows: slice | Tensor) -> Tensor:
    """Return the product of two levels of scales, in fp32."""
    if outer is None:
        return inner.float()
    factors = outer[rows].float().unsqueeze(2)
    num_inner = inner.shape[1] // factors.shape[1]
    return (inner.float().view(len(inner), factors.shape[1], num_inner) * factors).flatten(1)
