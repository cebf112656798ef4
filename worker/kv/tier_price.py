"""Measured time to fetch blocks from a store, compared with the time to compute them."""

from collections.abc import Sequence
from dataclasses import dataclass

GRACE_S = 0.02  # for any fetch, before it may be called slow
UNKNOWN_S = 2.0  # for a fetch while the time to compute its blocks has not been measured
FIRST_SHARE = 0.1  # of the time to compute all blocks: for the first one to arrive
LONGEST_LOOKUP_S = 1.0  # for a response of the stores, whatever it would save
UNKNOWN_LOOKUP_S = 0.25  # the same while the time to compute the blocks has not been measured
WEIGHT = 0.3  # of the newest fetch in the means
PROBE_S = 30.0  # after which a store that was too slow is tried again


@dataclass(slots=True)
class FetchSpeed:
    """Measured seconds of one store, as running means; 0: not known yet, so that the first fetch is tried."""

    first_s: float = 0.0  # until the first block
    block_s: float = 0.0  # for each further block
    noted_at_s: float = 0.0  # monotonic clock of the last fetch

    def note(self, durations_s: Sequence[float], now_s: float) -> None:
        """Record how long each block of one fetch took, in order."""
        if not durations_s:
            return
        first_s, *others_s = durations_s
        self.first_s = _mean(self.first_s, first_s)
        if others_s:
            self.block_s = _mean(self.block_s, sum(others_s) / len(others_s))
        self.noted_at_s = now_s

    def fetch_s(self, num_blocks: int) -> float:
        """Return the seconds that a fetch of some blocks takes."""
        return self.first_s + (num_blocks - 1) * self.block_s

    def pays(self, num_blocks: int, compute_s: float, now_s: float) -> bool:
        """Return whether blocks should be fetched that take `compute_s` to compute; 0: not known.

        A store that does not pay is tried again at times: what made it slow may have passed.
        """
        if not compute_s or self.fetch_s(num_blocks) < compute_s:
            return True
        return now_s - self.noted_at_s > PROBE_S


def _mean(mean: float, newest: float) -> float:
    return mean + WEIGHT * (newest - mean) if mean else newest


def is_slow(num_read: int, num_blocks: int, elapsed_s: float, compute_s: float) -> bool:
    """Return whether a running fetch should end, since the rest of its blocks is computed sooner.

    compute_s: seconds to compute all of the blocks; 0: not known.
    """
    if not num_read or not compute_s:
        return elapsed_s > patience_s(compute_s)
    return elapsed_s > GRACE_S and elapsed_s / num_read > compute_s / num_blocks


def patience_s(compute_s: float) -> float:
    """Return for how long a fetch may bring nothing, if its blocks take `compute_s` to compute; 0: not known."""
    return max(GRACE_S, FIRST_SHARE * compute_s) if compute_s else UNKNOWN_S


def lookup_patience_s(compute_s: float) -> float:
    """Return how long a lookup of blocks may take that take `compute_s` to compute; 0: not known."""
    return min(LONGEST_LOOKUP_S, FIRST_SHARE * compute_s) if compute_s else UNKNOWN_LOOKUP_S
