"""GGUF's blocks: codes of a row's 32 or 256 adjacent columns with their scales.

Described by ggml's quantize_row_* and dequantize_row_* functions; an element is the same number, bit for bit, as
theirs in fp32.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.checkpoint.gguf.types import GgufType
from baton.engine.checkpoint.packed.compressed_layout import powers_of_two
from baton.engine.checkpoint.packed.grouped_matrix import GroupedMatrix, e2m1_table, packed
from baton.engine.checkpoint.packed.stored_layout import StoredPart, Wanted, check_multiple

CHUNK_ITEMS = 1 << 20  # elements converted at once
MIN_WIDTH = 8  # columns of the smallest part of a group that a rank may begin with


@dataclass(frozen=True, slots=True)
class GgufLayout:
    """Rows of blocks of one type."""

    kind: GgufType

    def parts(self, num_rows: int, num_columns: int) -> list[StoredPart]:
        """Return the tensor of a matrix of this shape."""
        return [StoredPart(".weight", ((num_rows, num_columns),), (self.kind.dtype,))]

    def check(self, wanted: Wanted) -> None:
        """Raise UnsupportedModel or InvalidCheckpoint if the part cannot be read on its own."""
        check_multiple(wanted, MIN_WIDTH)

    def read(self, tensors: Mapping[str, Tensor], wanted: Wanted) -> GroupedMatrix:
        """Return a part of the matrix: the blocks with its columns, without those that it lacks."""
        elements, size = self.kind.elements, self.kind.num_bytes
        first, last = wanted.columns.start // elements, -(-wanted.columns.stop // elements)
        stored = tensors[".weight"][wanted.rows, first * size : last * size]
        num_rows = max(1, CHUNK_ITEMS // max((last - first) * elements, 1))
        read = READERS[self.kind.name]
        chunks = (read(rows.reshape(len(rows), -1, size)) for rows in torch.split(stored, num_rows))
        whole = GroupedMatrix.collected(chunks, len(stored))
        inner = slice(wanted.columns.start - first * elements, wanted.columns.stop - first * elements)
        return whole.columns(inner)


def _halves(blocks: Tensor, start: int, stop: int) -> Tensor:
    """Return some bytes of each block as fp16."""
    return blocks[:, :, start:stop].contiguous().view(torch.float16).flatten(1)


def _nibbles(codes: Tensor) -> Tensor:
    """Return 32 codes per 16 bytes, [..., 16] to [..., 32], the lower 4 bits of all bytes first."""
    return torch.cat([codes & 15, codes >> 4], -1)


def _low(codes: Tensor) -> Tensor:
    """Pack the lower 4 bits of codes [rows, blocks, columns]."""
    return packed(codes.flatten(1) & 15, 4)


def _q8_0(blocks: Tensor) -> GroupedMatrix:
    return GroupedMatrix(low=blocks[:, :, 2:].flatten(1) ^ 128, bits=8, scales=_halves(blocks, 0, 2))


def _q4_0(blocks: Tensor) -> GroupedMatrix:
    return GroupedMatrix(low=_low(_nibbles(blocks[:, :, 2:])), bits=4, scales=_halves(blocks, 0, 2))


def _q4_1(blocks: Tensor) -> GroupedMatrix:
    minima = -_halves(blocks, 2, 4)
    return GroupedMatrix(low=_low(_nibbles(blocks[:, :, 4:])), bits=4, scales=_halves(blocks, 0, 2), minima=minima)


def _q5_0(blocks: Tensor) -> GroupedMatrix:
    return GroupedMatrix(
        low=_low(_nibbles(blocks[:, :, 6:])),
        high=blocks[:, :, 2:6].flatten(1).contiguous(),  # a bit for each of the 32 columns, in order
        bits=5,
        scales=_halves(blocks, 0, 2),
    )


def _q5_1(blocks: Tensor) -> GroupedMatrix:
    return GroupedMatrix(
        low=_low(_nibbles(blocks[:, :, 8:])),
        high=blocks[:, :, 4:8].flatten(1).contiguous(),
        bits=5,
        scales=_halves(blocks, 0, 2),
        minima=-_halves(blocks, 2, 4),
    )


def _k_scales(stored: Tensor) -> tuple[Tensor, Tensor]:
    """Return the 8 scales and 8 minima, of 6 bits each, in 12 bytes: [rows, blocks, 12] to [rows, blocks * 8]."""
    scales, minima, both = torch.split(stored, 4, 2)
    upper_scales, upper_minima = (scales >> 2) & 48, (minima >> 2) & 48
    return (
        torch.cat([scales & 63, (both & 15) | upper_scales], 2).flatten(1),
        torch.cat([minima & 63, (both >> 4) | upper_minima], 2).flatten(1),
    )


def _k_nibbles(codes: Tensor) -> Tensor:
    """Return the codes of 4 times 32 bytes, each with two runs of 32 columns: [rows, blocks, 128] to [.., .., 256]."""
    runs = codes.reshape(*codes.shape[:2], 4, 32)
    return torch.stack([runs & 15, runs >> 4], 3).flatten(2)


def _q4_k(blocks: Tensor) -> GroupedMatrix:
    scales, minima = _k_scales(blocks[:, :, 4:16])
    return GroupedMatrix(
        low=_low(_k_nibbles(blocks[:, :, 16:])),
        bits=4,
        scales=scales,
        minima=minima,
        outer_scales=_halves(blocks, 0, 2),
        outer_minima=_halves(blocks, 2, 4),
    )


def _q5_k(blocks: Tensor) -> GroupedMatrix:
    scales, minima = _k_scales(blocks[:, :, 4:16])
    bits = torch.stack([(blocks[:, :, 16:48] >> place) & 1 for place in range(8)], 2)  # [rows, blocks, 8, 32]
    return GroupedMatrix(
        low=_low(_k_nibbles(blocks[:, :, 48:])),
        high=packed(bits.flatten(1), 1),
        bits=5,
        scales=scales,
        minima=minima,
        outer_scales=_halves(blocks, 0, 2),
        outer_minima=_halves(blocks, 2, 4),
    )


def _q6_k(blocks: Tensor) -> GroupedMatrix:
    lower = blocks[:, :, :128].reshape(*blocks.shape[:2], 2, 64)  # each half of the block has two runs of 64 columns
    upper = blocks[:, :, 128:192].reshape(*blocks.shape[:2], 2, 32)  # and 4 runs of 32, each with 2 bits of a byte
    bits = torch.stack([(upper >> place) & 3 for place in (0, 2, 4, 6)], 3)
    return GroupedMatrix(
        low=_low(torch.cat([lower & 15, lower >> 4], 3)),
        high=packed(bits.flatten(1), 2),
        bits=6,
        scales=blocks[:, :, 192:208].contiguous().view(torch.int8).flatten(1),
        outer_scales=_halves(blocks, 208, 210),
    )


def _mxfp4(blocks: Tensor) -> GroupedMatrix:
    scales = powers_of_two(blocks[:, :, 0])
    return GroupedMatrix(low=_low(_nibbles(blocks[:, :, 1:])), bits=4, scales=scales, table=e2m1_table())


READERS: dict[str, Callable[[Tensor], GroupedMatrix]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "MXFP4": _mxfp4,
}
