"""Changes of direction of a size."""

from collections.abc import Iterable
from itertools import count


def turns(sizes: Iterable[int], times: Iterable[float] | None = None) -> list[float]:
    """Return the times at which a size changed in the other direction than before."""
    found: list[float] = []
    last, has_grown = None, None
    for at_s, size in zip(times if times is not None else count(), sizes, strict=False):
        if last is not None and size != last:
            if has_grown is not None and has_grown is not (size > last):
                found.append(float(at_s))
            has_grown = size > last
        last = size
    return found


def most_turns(found: list[float], within_s: float) -> int:
    """Return the largest number of turns in any period of this length."""
    return max((sum(at_s <= other < at_s + within_s for other in found) for at_s in found), default=0)
