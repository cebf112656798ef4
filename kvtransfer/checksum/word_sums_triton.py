"""The Triton kernel for the sums of `word_checksum`; importing it requires Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = 1024  # words that a program processes at once
WORDS_A_PROGRAM = 16384  # small enough that one block of a few MiB occupies many SMs

# The constants of `word_checksum` as signed integers; its tests compare the two.
GOLDEN = tl.constexpr(-7046029254386353131)
MIX = tl.constexpr(-2960836687051489901)
SPLITMIX_1 = tl.constexpr(-4658895280553007687)
SPLITMIX_2 = tl.constexpr(-7723592293110705685)
LOW_37 = tl.constexpr((1 << 37) - 1)
LOW_34 = tl.constexpr((1 << 34) - 1)
LOW_33 = tl.constexpr((1 << 33) - 1)
LOW_32 = tl.constexpr((1 << 32) - 1)


@triton.jit  # type: ignore[untyped-decorator]
def _sum_words(words, units, sums, num_words, num_parts, WORDS: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    place, part = tl.program_id(0), tl.program_id(1)
    base = words + tl.load(units + place) * num_words
    lanes = tl.arange(0, LANES).to(tl.int64)
    first = part.to(tl.int64) * WORDS
    total = tl.zeros([LANES], tl.int64)
    for offset in range(0, WORDS, LANES):
        index = first + offset + lanes
        mixed = tl.load(base + index, mask=index < num_words, other=0) * MIX
        mixed ^= (mixed >> 32) & LOW_32
        factor = (index + 1) * GOLDEN
        factor = (factor ^ ((factor >> 30) & LOW_34)) * SPLITMIX_1
        factor = (factor ^ ((factor >> 27) & LOW_37)) * SPLITMIX_2
        factor = (factor ^ ((factor >> 31) & LOW_33)) | 1
        total += mixed * factor
    tl.store(sums + place * num_parts + part, tl.sum(total, 0))


def sum_words(words: Tensor, units: Tensor) -> Tensor:
    """Return the weighted sums of the units' words, [len(units)]; words: [num_units, num_words], contiguous."""
    num_words = words.shape[1]
    num_parts = triton.cdiv(num_words, WORDS_A_PROGRAM)
    sums = torch.empty(len(units), num_parts, dtype=torch.int64, device=words.device)
    _sum_words[(len(units), num_parts)](words, units, sums, num_words, num_parts, WORDS_A_PROGRAM, LANES)
    return sums.sum(1)
