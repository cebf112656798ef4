"""The bound on the memory of all matchers.

A matcher keeps one state for each reading of each prefix of its output. For ambiguous grammars their number grows with
the square of the output: 1 GiB after 1,400 tokens of eight consecutive `[a-z ]*`. xgrammar does not report their size.
The bound is exceeded if both of these exceed it:

- the memory that the process has allocated since there was no matcher;
- an upper estimate of all matchers: states are made by matching tokens, so that it is proportional to its CPU time.
"""

import ctypes
from collections.abc import Iterable
from math import inf

from baton.engine.errors import EngineError, InvalidRequest, QueueFull
from baton.engine.grammar.mask_fill import GrammarState

MAX_STATE_BYTES = 1 << 30
BYTES_PER_S = 1e9  # of CPU time of matching; at most 0.45e9 were measured, and other CPUs may be faster
MAX_BYTES_PER_TOKEN = 16 << 10  # estimated; usual grammars have less than 2 KiB
MALLINFO_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip
FREED_SHARE = 0.25  # of all matchers, to be freed at once: the others go on growing


def excess(states: Iterable[GrammarState], base_bytes: float) -> list[tuple[GrammarState, EngineError]]:
    """Return the requests with the largest matchers, with an error for each, if all of them exceed the bound.

    base_bytes: `allocated_bytes` without matchers.
    """
    sizes = [
        (state.position.match_s * BYTES_PER_S, state.position.num_tokens, state)
        for state in states
        if state.position is not None
    ]
    num_bytes = sum(size for size, _, _ in sizes)
    if num_bytes <= MAX_STATE_BYTES or allocated_bytes() - base_bytes <= MAX_STATE_BYTES:
        return []
    sizes.sort(key=lambda item: -item[0])
    found: list[tuple[GrammarState, EngineError]] = []
    num_freed = 0.0
    for size, num_tokens, state in sizes:
        if num_freed >= FREED_SHARE * num_bytes:
            break
        num_freed += size
        found.append((state, _error(size / (num_tokens + 1))))
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


def _error(bytes_per_token: float) -> EngineError:
    if bytes_per_token > MAX_BYTES_PER_TOKEN:
        return InvalidRequest("matching this output takes too much memory; make it less ambiguous")
    return QueueFull("the outputs that match grammars take too much memory; try again later")
