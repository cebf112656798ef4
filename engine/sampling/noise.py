"""Sampling noise from seed, position and token alone, so that a moved or re-batched request samples the same tokens.

The noise of token `i` is output `i` of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014; constants of Stafford's mixer 13) started at `key = mix(mix(seed) ^ position)`. That is

    mix(key + (i + 1) * 0x9E3779B97F4A7C15)   modulo 2 ** 64

of which the upper 52 bits give a uniform number in (0, 1), exact in float64, and that gives a Gumbel number. The
integers are the same on every device; in float64, device differences of the logarithms are too small to change a token.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from baton.engine.execution.device import to_device_async

# As signed 64-bit numbers: torch multiplies int64 modulo 2 ** 64.
_INCREMENT = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST_FACTOR = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND_FACTOR = 0x94D049BB133111EB - (1 << 64)


def row_keys(seeds: Sequence[int], positions: Sequence[int], device: torch.device) -> Tensor:
    """Return a noise key for each pair of a 64-bit unsigned seed and a position, [num_rows] int64."""
    seed_bits = torch.from_numpy(np.array(seeds, dtype=np.uint64).view(np.int64))
    return to_device_async(_mix(_mix(seed_bits) ^ torch.tensor(positions, dtype=torch.int64)), device)


def gumbel_noise(keys: Tensor, counters: Tensor) -> Tensor:
    """Return standard Gumbel noise, [num_rows, num_counters] float64.

    keys: [num_rows] int64; counters: [num_rows, num_counters] or [num_counters] int64, usually token ids.
    """
    bits = _mix(keys[:, None] + (counters + 1) * _INCREMENT)
    uniform = (_shift_right(bits, 12).double() + 0.5) * 2.0**-52
    return uniform.log_().neg_().log_().neg_()


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift_right(bits, 30)) * _FIRST_FACTOR
    bits = (bits ^ _shift_right(bits, 27)) * _SECOND_FACTOR
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    # torch's shift extends the sign; an unsigned shift inserts zeros.
    return (bits >> count) & ((1 << (64 - count)) - 1)
