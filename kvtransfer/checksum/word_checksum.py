"""Checksums that a GPU computes in one pass: a sum of a unit's 64-bit words, each multiplied by an odd number.

A word `w` is first mixed, `x = K w`, `x ^= x >> 32`; then the checksum is `fmix(sum of m_i x_i + n C)`, all modulo
2^64, with `m_i` the splitmix64 sequence made odd, `n` the number of words, and K, C odd. A unit whose length is not a
multiple of eight bytes is padded with zeros; `n C` distinguishes it from one that is longer by words of zero.

This is multilinear hashing (Lemire and Kaser, Strongly Universal String Hashing is Fast, The Computer Journal 57, 2014)
with fixed multipliers. The sum does not depend on the order, so any number of processors can share a unit. It detects:

- A difference in one word, always: mixing is one to one, `m_i` is odd and so has an inverse, and `fmix` is one to one.
- Any other difference, unless `sum of m_i (x_i - x'_i)` is 0 modulo 2^64. For random multipliers the probability of
  that is at most 2^(t - 63), where 2^t is the greatest power of two that divides all the differences. It is 2^-63 as
  soon as one of them is odd.
- Two swapped words, unless `(m_i - m_j)(x_i - x_j)` is 0, that is, unless the words' mixed difference is divisible by
  2^(64 - v), where 2^v is the greatest power of two that divides `m_i - m_j`; half of all pairs of positions have
  v = 1. This is the reason for the mixing: without it, a swap of words that differ in their top bit alone could go
  undetected.
- A unit that is shifted by some words, or torn between two, differs in many words at once: the second case.

The multipliers are public, so neither this checksum nor xxh3 protects against a malicious peer.

The finaliser is MurmurHash3's (Appleby). The splitmix64 sequence is from Steele, Lea and Flood (Fast Splittable
Pseudorandom Number Generators, OOPSLA 2014).
"""

import logging
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

import torch
from torch import Tensor

from baton.kvtransfer.errors import first_line

WORD_BYTES = 8
MASK = (1 << 64) - 1
MAX_STEP_BYTES = 16 << 20  # summed at once with torch's operations, which need several times as much temporary memory
MAX_CPU_STEP_BYTES = 512 << 10  # the same on a CPU; fits a core's cache


def signed(number: int) -> int:
    """Convert a 64-bit number to the signed integer that torch stores."""
    number &= MASK
    return number - (1 << 64) if number >> 63 else number


GOLDEN = 0x9E3779B97F4A7C15
MIX = signed(0xD6E8FEB86659FD93)
COUNT = signed(0xC2B2AE3D27D4EB4F)
SPLITMIX = (signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB))
FMIX = (signed(0xFF51AFD7ED558CCD), signed(0xC4CEB9FE1A85EC53))


def word_checksums(rows: Tensor, units: Sequence[int]) -> list[int]:
    """Return checksums of units, in order; rows: [num_units, unit_bytes], uint8, on any device; synchronises once."""
    if not units:
        return []
    words = _words_of(rows)
    chosen = torch.tensor(units, dtype=torch.int64, device=rows.device)
    sums = sum_words(words, chosen) if words is not None else _sum_padded(rows, chosen)
    num_words = -(-rows.shape[1] // WORD_BYTES)
    return [each & MASK for each in _finalised(sums + signed(num_words * COUNT)).tolist()]


def sum_words(words: Tensor, units: Tensor) -> Tensor:
    """Return the weighted sums of the units' words, [len(units)]; words: [num_units, num_words]."""
    kernel = word_sums_kernel(words.device, sum_words_in_torch) if words.is_cuda else None
    return kernel(words, units) if kernel is not None else sum_words_in_torch(words, units)


def sum_words_in_torch(words: Tensor, units: Tensor) -> Tensor:
    """Return the same as `sum_words` without Triton; also the reference for its kernel."""
    factors = multipliers(words.shape[1], words.device)
    most = MAX_STEP_BYTES if words.is_cuda else MAX_CPU_STEP_BYTES
    step = max(1, most // (words.shape[1] * WORD_BYTES))
    parts = []
    for part in torch.split(units, step):
        mixed = words[part] * MIX
        mixed ^= _upper(mixed, 32)
        parts.append(mixed.mul_(factors).sum(1))
    return torch.cat(parts)


@lru_cache(maxsize=8)
def multipliers(count: int, device: torch.device) -> Tensor:
    """Return the multipliers of the first `count` words, [count]."""
    places = torch.arange(1, count + 1, dtype=torch.int64, device=device) * signed(GOLDEN)
    places = (places ^ _upper(places, 30)) * SPLITMIX[0]
    places = (places ^ _upper(places, 27)) * SPLITMIX[1]
    places = (places ^ _upper(places, 31)) | 1
    if places.is_cuda:  # cached: the next caller may use it on another stream
        torch.cuda.current_stream(device).synchronize()
    return places


def _finalised(sums: Tensor) -> Tensor:
    sums = (sums ^ _upper(sums, 33)) * FMIX[0]
    sums = (sums ^ _upper(sums, 33)) * FMIX[1]
    return sums ^ _upper(sums, 33)


def _upper(numbers: Tensor, shift: int) -> Tensor:
    """Shift right and fill with zeros; torch's shift of a signed type copies the sign bit."""
    return (numbers >> shift) & ((1 << (64 - shift)) - 1)


def _words_of(rows: Tensor) -> Tensor | None:
    """Return a view of the units as words; None if they are not aligned or not a multiple of eight bytes."""
    if rows.shape[1] % WORD_BYTES or rows.data_ptr() % WORD_BYTES:
        return None
    return rows.view(torch.int64)


def _sum_padded(rows: Tensor, units: Tensor) -> Tensor:
    """Sum units that are unaligned or need padding, by padded copies; no model's blocks need this."""
    padded = torch.nn.functional.pad(rows[units], (0, -rows.shape[1] % WORD_BYTES))
    return sum_words(padded.view(torch.int64), torch.arange(len(units), device=rows.device))


logger = logging.getLogger(__name__)

SumWords = Callable[[Tensor, Tensor], Tensor]


@cache
def word_sums_kernel(device: torch.device, in_torch: SumWords) -> SumWords | None:
    """Return the Triton kernel if its sums on the device equal those of `in_torch`; otherwise log why and return None.

    An installed Triton is not enough: it compiles on first use, which needs a C compiler. Without the kernel, torch's
    operations read and write the words several times.
    """
    try:
        kernel = load_kernel()
        words = torch.arange(1, 3001, device=device).mul_(-7046029254386353131).view(6, 500)
        units = torch.tensor([4, 0, 5], device=device)
        if not torch.equal(kernel(words, units), in_torch(words, units)):
            raise ArithmeticError("its sums are wrong")
    except Exception as error:  # whatever Triton, a compiler or the driver raises
        reason = f"{type(error).__name__}: {first_line(error)}"
        logger.warning("checksums of KV blocks use torch's operations, since Triton does not work here: %s", reason)
        return None
    return kernel


def load_kernel() -> SumWords:
    """Import the Triton kernel. Raises ImportError if Triton is not installed."""
    from baton.kvtransfer.checksum.word_sums_triton import sum_words

    return sum_words
