"""Search for the stored beginning of a sequence of blocks, with few lookups."""

from collections.abc import Callable, Sequence
from typing import TypeVar

PROBES = 32  # lookups at once

T = TypeVar("T")


def count_prefix(num_keys: int, first_missing: Callable[[Sequence[int]], int]) -> int:
    """Return how many of the keys 0 to `num_keys` - 1, from the first on, seem to be stored.

    `first_missing` looks up at most 32 keys, by their numbers, and returns the place in its argument of the first one
    that is not stored, or the argument's length. Up to 31 keys are all looked up. Of more, it looks up some among all,
    then some between the last one that is there and the first that is not, and so on; a missing block between stored
    ones may go unnoticed. 8,192 keys take three rounds.
    """
    present, missing = 0, num_keys  # all below `present` seem to be there; `missing` is not, or is the end
    while present < missing:
        step = -(-(missing - present) // (PROBES - 1))
        probes = sorted({present, *range(present + step - 1, missing, step), missing - 1})
        first = first_missing(probes)
        if first < len(probes):
            missing = probes[first]
        if first > 0:
            present = probes[first - 1] + 1
    return present


def count_keys(keys: Sequence[T], has: Callable[[Sequence[T]], Sequence[bool]]) -> int:
    """Return how many keys, from the first on, seem to be stored; see `count_prefix`. has: returns it of some keys."""

    def first_missing(places: Sequence[int]) -> int:
        found = has([keys[place] for place in places])
        return found.index(False) if False in found else len(found)

    return count_prefix(len(keys), first_missing)
