"""GPTQ's and AWQ's layouts: 32-bit words of codes, with a scale and a zero point per group of inputs and output.

GPTQ (arXiv 2210.17323) as AutoGPTQ and GPTQModel store it, AWQ (arXiv 2306.00978) as AutoAWQ does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.checkpoint.packed.grouped_matrix import GroupedMatrix, packed, unpacked
from baton.engine.checkpoint.packed.groups import as_zeros, column_groups, group_index
from baton.engine.checkpoint.packed.scheme import PackedScheme
from baton.engine.checkpoint.packed.stored_layout import (
    FLOATS,
    StoredPart,
    Wanted,
    check_groups,
    check_multiple,
    check_outputs,
)

WORD_BITS = 32
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # where in a word AWQ stores the code of each of its 8 outputs
ROWS_AT_ONCE = 512  # outputs repacked at once
ONES = {4: 0x11111111, 8: 0x01010101}  # 1 in each code of a word


@dataclass(frozen=True, slots=True)
class GptqLayout:
    """Words along the inputs: qweight [inputs / n, outputs]; qzeros [groups, outputs / n]; n codes in a word."""

    scheme: PackedScheme

    def parts(self, num_rows: int, num_columns: int) -> list[StoredPart]:
        """Return the tensors of a matrix of this shape."""
        per_word = WORD_BITS // self.scheme.bits
        num_groups = num_columns // (self.scheme.group_size or num_columns)
        return [
            StoredPart(".qweight", ((num_columns // per_word, num_rows),), ("int32",)),
            StoredPart(".scales", ((num_groups, num_rows),), FLOATS),
            StoredPart(".qzeros", ((num_groups, num_rows // per_word),), ("int32",)),
            StoredPart(".g_idx", ((num_columns,),), ("int32",), is_optional=True),
        ]

    def check(self, wanted: Wanted) -> None:
        """Raise UnsupportedModel or InvalidCheckpoint if the part cannot be read on its own."""
        check_groups(wanted, self.scheme.group_size)
        check_multiple(wanted, WORD_BITS // self.scheme.bits)
        check_outputs(wanted, WORD_BITS // self.scheme.bits)

    def read(self, tensors: Mapping[str, Tensor], wanted: Wanted) -> GroupedMatrix:
        """Return a part of the matrix: words of codes are transposed, and their bytes are codes in order."""
        bits, per_word = self.scheme.bits, WORD_BITS // self.scheme.bits
        rows, columns = wanted.rows, wanted.columns
        words = tensors[".qweight"][columns.start // per_word : columns.stop // per_word, rows]
        size = self.scheme.group_size or wanted.num_columns
        groups = column_groups(tensors.get(".g_idx"), wanted, size)
        which = slice(None) if groups is not None else group_index(columns, size)
        stored = tensors[".qzeros"][which]
        if self.scheme.zero_offset:
            stored = stored + ONES[bits]  # writers subtract 1 from whole words, so that a zero point of 0 borrows
        zeros = _word_codes(stored, bits)[:, rows].T
        return GroupedMatrix(
            low=words.T.contiguous().view(torch.uint8),
            bits=bits,
            scales=tensors[".scales"][which, rows].T.contiguous(),
            zeros=as_zeros(zeros, bits),
            groups=groups,
        )


@dataclass(frozen=True, slots=True)
class AwqLayout:
    """Words along the outputs, whose codes are interleaved: qweight [inputs, outputs / 8]; qzeros likewise."""

    scheme: PackedScheme

    def parts(self, num_rows: int, num_columns: int) -> list[StoredPart]:
        """Return the tensors of a matrix of this shape."""
        num_words = num_rows // len(AWQ_PLACES)
        num_groups = num_columns // (self.scheme.group_size or num_columns)
        return [
            StoredPart(".qweight", ((num_columns, num_words),), ("int32",)),
            StoredPart(".scales", ((num_groups, num_rows),), FLOATS),
            StoredPart(".qzeros", ((num_groups, num_words),), ("int32",)),
        ]

    def check(self, wanted: Wanted) -> None:
        """Raise UnsupportedModel or InvalidCheckpoint if the part cannot be read on its own."""
        check_groups(wanted, self.scheme.group_size)
        check_multiple(wanted, 2)
        check_outputs(wanted, len(AWQ_PLACES))

    def read(self, tensors: Mapping[str, Tensor], wanted: Wanted) -> GroupedMatrix:
        """Return a part of the matrix; its codes are put in order."""
        rows, columns = wanted.rows, wanted.columns
        which = group_index(columns, self.scheme.group_size or wanted.num_columns)
        words = tensors[".qweight"][columns]
        chunks = [
            packed(_in_order(words, slice(start, min(start + ROWS_AT_ONCE, rows.stop))), 4)
            for start in range(rows.start, rows.stop, ROWS_AT_ONCE)
        ]
        return GroupedMatrix(
            low=torch.cat(chunks),
            bits=4,
            scales=tensors[".scales"][which, rows].T.contiguous(),
            zeros=as_zeros(_in_order(tensors[".qzeros"][which], rows), 4),
        )


def _in_order(words: Tensor, rows: slice) -> Tensor:
    """Return the codes of some outputs as uint8 [outputs, length], from words [length, all outputs / 8]."""
    per_word = len(AWQ_PLACES)
    first = rows.start // per_word
    codes = _word_codes(words[:, first : -(-rows.stop // per_word)], 4)
    ordered = codes.view(len(codes), -1, per_word)[:, :, AWQ_PLACES].flatten(1)
    return ordered[:, rows.start - first * per_word : rows.stop - first * per_word].T.contiguous()


def _word_codes(words: Tensor, bits: int) -> Tensor:
    """Return the codes in words [length, words], the lowest bits first, as uint8 [length, codes]."""
    each = words.contiguous().view(torch.uint8)
    return each if bits == 8 else unpacked(each, bits)
