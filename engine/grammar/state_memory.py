"""The bound on the memory of matchers.

A matcher keeps one state for each reading of each prefix of its output. Usual grammars need 0.2 to 0.7 KB per token,
much less than the token's KV. For ambiguous grammars the states grow with the square of the output: 1 GiB after 1,400
tokens of eight consecutive `[a-z ]*` in EBNF, and sooner for long counted repetitions of any kind.

xgrammar does not report their size. But they are made by matching tokens, so that an upper estimate is proportional to
its CPU time. The bound is exceeded if the estimate for all matchers that are large for their tokens exceeds it, and the
memory that the process has allocated since there was no matcher does as well.
"""

import contextlib
import ctypes
import threading
from collections.abc import Iterable
from math import inf

from baton.engine.grammar.mask_fill import GrammarState

MAX_STATE_BYTES = 1 << 30
BYTES_PER_S = 2e9  # of CPU time of matching; at most 0.7e9 were measured, and other CPUs may be faster
LARGE_BYTES_PER_TOKEN = 32 << 10  # estimated; usual grammars have less than 4 KiB
MALLINFO_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip
RETURN_DELAY_S = 2.5  # longer than a thread goes on with one token
FREED_SHARE = 0.25  # of large matchers, to be freed at once: the others go on growing


class StateMemory:
    """The memory of the matchers of an engine's requests, and what the process keeps of it. Not thread-safe."""

    def __init__(self) -> None:
        self.num_large_bytes = 0.0  # estimate for the large matchers at the last check
        self._num_freed_bytes = 0.0  # of large matchers that have ended; malloc may still hold them
        self._base_bytes = 0.0

    def note_empty(self) -> None:
        """Note that there is no matcher now."""
        self._base_bytes = allocated_bytes()

    def check(self, states: Iterable[GrammarState]) -> list[GrammarState]:
        """Return the states with the largest matchers if these exceed the bound, enough of them to free a share."""
        sizes = {state: size for state in states if (size := _large_bytes(state))}
        num_bytes = sum(sizes.values())
        self._num_freed_bytes += max(0.0, self.num_large_bytes - num_bytes)
        if self._num_freed_bytes >= FREED_SHARE * MAX_STATE_BYTES:
            self._num_freed_bytes = 0.0
            _return_later()
        self.num_large_bytes = num_bytes
        if num_bytes <= MAX_STATE_BYTES or allocated_bytes() - self._base_bytes <= MAX_STATE_BYTES:
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


def _return_later() -> None:
    """Return free memory to the system once matchers that are still in use by a thread have ended as well.

    malloc keeps it otherwise, for each thread that has allocated some.
    """
    with contextlib.suppress(AttributeError):  # only glibc has it
        timer = threading.Timer(RETURN_DELAY_S, ctypes.CDLL(None).malloc_trim, (0,))
        timer.daemon = True
        timer.start()
