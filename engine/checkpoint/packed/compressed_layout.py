"""Layouts of compressed-tensors (https://github.com/vllm-project/compressed-tensors): codes in rows."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.checkpoint.packed.grouped_matrix import GroupedMatrix, e2m1_table, unpacked
from baton.engine.checkpoint.packed.groups import as_zeros, column_groups, group_index
from baton.engine.checkpoint.packed.scheme import PackedScheme
from baton.engine.checkpoint.packed.stored_layout import FLOATS, StoredPart, Wanted, check_groups, check_multiple

WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class WordsLayout:
    """pack-quantized: words of codes along a row, the first one lowest; words of zero points along the outputs."""

    scheme: PackedScheme

    def parts(self, num_rows: int, num_columns: int) -> list[StoredPart]:
        """Return the tensors of a matrix of this shape."""
        per_word = WORD_BITS // self.scheme.bits
        num_groups = num_columns // (self.scheme.group_size or num_columns)
        found = [
            StoredPart(".weight_packed", ((num_rows, -(-num_columns // per_word)),), ("int32",)),
            StoredPart(".weight_scale", _scales(self.scheme, num_rows, num_groups), FLOATS),
            StoredPart(".weight_shape", ((2,),), ("int64", "int32"), is_optional=True),
        ]
        if self.scheme.has_zeros:
            found.append(StoredPart(".weight_zero_point", ((-(-num_rows // per_word), num_groups),), ("int32",)))
        if self.scheme.has_order:
            found.append(StoredPart(".weight_g_idx", ((num_columns,),), ("int32", "int64"), is_optional=True))
        return found

    def check(self, wanted: Wanted) -> None:
        """Raise UnsupportedModel or InvalidCheckpoint if the part cannot be read on its own."""
        check_groups(wanted, self.scheme.group_size)
        check_multiple(wanted, WORD_BITS // self.scheme.bits)

    def read(self, tensors: Mapping[str, Tensor], wanted: Wanted) -> GroupedMatrix:
        """Return a part of the matrix; codes are stored as they are used."""
        bits, per_word, rows, columns = self.scheme.bits, WORD_BITS // self.scheme.bits, wanted.rows, wanted.columns
        words = tensors[".weight_packed"][rows, columns.start // per_word : columns.stop // per_word]
        size = self.scheme.group_size or wanted.num_columns
        groups = column_groups(tensors.get(".weight_g_idx"), wanted, size)
        which = slice(None) if groups is not None else group_index(columns, size)
        zeros = None
        if self.scheme.has_zeros:
            stored = tensors[".weight_zero_point"].T.contiguous().view(torch.uint8)
            codes = stored if bits == 8 else unpacked(stored, bits)  # [groups, outputs]
            zeros = as_zeros(codes[which, rows].T, bits)
        return GroupedMatrix(
            low=words.clone(memory_format=torch.contiguous_format).view(torch.uint8),
            bits=bits,
            scales=_part_of_scales(tensors[".weight_scale"], wanted, which),
            zeros=zeros,
            groups=groups,
        )


@dataclass(frozen=True, slots=True)
class BytesLayout:
    """int-quantized: signed bytes, with a scale per row, per group of columns or per matrix."""

    scheme: PackedScheme

    def parts(self, num_rows: int, num_columns: int) -> list[StoredPart]:
        """Return the tensors of a matrix of this shape."""
        shapes = _scales(self.scheme, num_rows, num_columns // (self.scheme.group_size or num_columns))
        found = [
            StoredPart(".weight", ((num_rows, num_columns),), ("int8",)),
            StoredPart(".weight_scale", shapes, FLOATS),
        ]
        return [*found, StoredPart(".weight_zero_point", shapes, ("int8",))] if self.scheme.has_zeros else found

    def check(self, wanted: Wanted) -> None:
        """Raise InvalidCheckpoint if groups do not divide the columns."""
        check_groups(wanted, self.scheme.group_size)

    def read(self, tensors: Mapping[str, Tensor], wanted: Wanted) -> GroupedMatrix:
        """Return a part of the matrix; codes are the bytes plus 128."""
        which = group_index(wanted.columns, self.scheme.group_size or wanted.num_columns)
        zeros = None
        if self.scheme.has_zeros:
            stored = _part_of_scales(tensors[".weight_zero_point"], wanted, which)
            zeros = as_zeros(stored.to(torch.int16) + 128, 8)
        return GroupedMatrix(
            low=tensors[".weight"][wanted.rows, wanted.columns].contiguous().view(torch.uint8) ^ 128,
            bits=8,
            scales=_part_of_scales(tensors[".weight_scale"], wanted, which),
            zeros=zeros,
        )


@dataclass(frozen=True, slots=True)
class Nvfp4Layout:
    """nvfp4-pack-quantized: numbers in E2M1, with scales in E4M3 per 16 columns and a divisor of all scales."""

    scheme: PackedScheme

    def parts(self, num_rows: int, num_columns: int) -> list[StoredPart]:
        """Return the tensors of a matrix of this shape."""
        num_groups = num_columns // (self.scheme.group_size or num_columns)
        return [
            StoredPart(".weight_packed", ((num_rows, num_columns // 2),), ("uint8",)),
            StoredPart(".weight_scale", ((num_rows, num_groups),), ("float8_e4m3fn",)),
            StoredPart(".weight_global_scale", ((1,), ()), ("float32",)),
        ]

    def check(self, wanted: Wanted) -> None:
        """Raise UnsupportedModel or InvalidCheckpoint if the part cannot be read on its own."""
        check_groups(wanted, self.scheme.group_size)
        check_multiple(wanted, 2)

    def read(self, tensors: Mapping[str, Tensor], wanted: Wanted) -> GroupedMatrix:
        """Return a part of the matrix."""
        which = group_index(wanted.columns, self.scheme.group_size or wanted.num_columns)
        scales = tensors[".weight_scale"].view(torch.uint8)[wanted.rows][:, which].view(torch.float8_e4m3fn)
        factor = 1.0 / tensors[".weight_global_scale"].float().reshape(1, 1)
        return GroupedMatrix(
            low=_pairs(tensors[".weight_packed"], wanted),
            bits=4,
            scales=scales,
            outer_scales=factor.expand(len(scales), 1).contiguous(),
            table=e2m1_table(),
        )


@dataclass(frozen=True, slots=True)
class Mxfp4Layout:
    """mxfp4-pack-quantized: numbers in E2M1, with a power of two per 32 columns (OCP Microscaling Formats 1.0)."""

    scheme: PackedScheme

    def parts(self, num_rows: int, num_columns: int) -> list[StoredPart]:
        """Return the tensors of a matrix of this shape."""
        num_groups = num_columns // (self.scheme.group_size or num_columns)
        return [
            StoredPart(".weight_packed", ((num_rows, num_columns // 2),), ("uint8",)),
            StoredPart(".weight_scale", ((num_rows, num_groups),), ("uint8",)),
        ]

    def check(self, wanted: Wanted) -> None:
        """Raise UnsupportedModel or InvalidCheckpoint if the part cannot be read on its own."""
        check_groups(wanted, self.scheme.group_size)
        check_multiple(wanted, 2)

    def read(self, tensors: Mapping[str, Tensor], wanted: Wanted) -> GroupedMatrix:
        """Return a part of the matrix."""
        which = group_index(wanted.columns, self.scheme.group_size or wanted.num_columns)
        exponents = tensors[".weight_scale"][wanted.rows][:, which]
        return GroupedMatrix(
            low=_pairs(tensors[".weight_packed"], wanted), bits=4, scales=powers_of_two(exponents), table=e2m1_table()
        )


def powers_of_two(exponents: Tensor) -> Tensor:
    """Return E8M0 numbers (2 ** (code - 127); 255 is NaN) as bfloat16, which has the same exponents."""
    bits = exponents.to(torch.int16)
    smallest = bits.new_tensor(0x40)  # 2 ** -127, which is subnormal
    return torch.where(bits == 0, smallest, (bits << 7) | (bits == 255)).view(torch.bfloat16)


def _pairs(stored: Tensor, wanted: Wanted) -> Tensor:
    return stored[wanted.rows, wanted.columns.start // 2 : wanted.columns.stop // 2].clone()


def _scales(scheme: PackedScheme, num_rows: int, num_groups: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes allowed for scales; without groups also one per row or one for all."""
    grouped = (num_rows, num_groups)
    return (grouped,) if scheme.group_size is not None else (grouped, (num_rows,), (1, 1), (1,), ())


def _part_of_scales(stored: Tensor, wanted: Wanted, which: Tensor | slice) -> Tensor:
    """Return the scales of a part's rows and of the groups `which`."""
    each = stored.reshape(-1, 1) if stored.dim() < 2 else stored
    part = each.expand(wanted.num_rows, each.shape[1])[wanted.rows][:, which]
    return part.clone(memory_format=torch.contiguous_format)
