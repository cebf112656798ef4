"""The bound on the memory of matchers.

A matcher keeps one state for each reading of each prefix of its output. Usual grammars need 0.2 to 0.7 KB per token,
much less than the token's KV. For ambiguous grammars the states grow with the square of the output: 1 GiB after 1,400
tokens of eight consecutive `[a-z ]*` in EBNF, and sooner for long counted repetitions of any kind.

xgrammar does not report their size. But they are made by matching tokens, so that an upper estimate is proportional to
its CPU time. The bound is exceeded if the estimate for all matchers that are large for their tokens exceeds it, and the
memory that the process has allocated since there was no matcher does as well.
"""

import ctypes
from collections.abc import Iterable
from math import inf

from baton.engine.grammar.mask_fill import GrammarState

MAX_STATE_BYTES = 1 << 30
BYTES_PER_S = 2e9  # of CPU time of matching; at most 0.7e9 were measured, and other CPUs may be faster
LARGE_BYTES_PER_TOKEN = 32 << 10  # estimated; usual grammars have less than 4 KiB
MALLINFO_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip
FREED_SHARE = 0.25  # of large matchers, to be freed at once: the others go on growing


def excess(states: Iterable[GrammarState], base_bytes: float) -> list[GrammarState]:
    """Return the states with the largest matchers if these exceed the bound, enough of them to free a share.

    base_bytes: `allocated_bytes` without matchers.
    """
    sizes = {state: size for state in states if (size := _large_bytes(state))}
    num_bytes = sum(sizes.values())
    if num_bytes <= MAX_STATE_BYTES or allocated_bytes() - base_bytes <= MAX_STATE_BYTES:
        return []
    found: list[GrammarState] = []
    for state in sorted(sizes, key=lambda state: -sizes[state]):
        if sum(sizes[each] for each in found) >= FREED_SHARE * num_bytes:
            break
        found.append(state)
    return found


def allocated_bytes() -> float:
    """Return the memory that the process has allocated by malloc; infinite if that is unknown (before glibc 2.33)."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return inf
    mallinfo2.restype = _MallInfo2
    found = mallinfo2()
    return float(found.uordblks + found.hblkhd)


class _MallInfo2(ctypes.Structure):
    """glibc's `struct mallinfo2`, sizes in bytes."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in MALLINFO_FIELDS)


def _large_bytes(state: GrammarState) -> float:
    """Return the estimated size of a state's matcher; 0 if it is usual for its tokens."""
    if state.position is None:
        return 0.0
    size = state.position.match_s * BYTES_PER_S
    return size if size > LARGE_BYTES_PER_TOKEN * state.position.num_tokens else 0.0
