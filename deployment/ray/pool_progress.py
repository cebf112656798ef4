"""How far a pool is on the way to its target."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

NUM_STARTS = 9  # that the measured time to start is the median of
OUT_OF_SIGHT_S = 600.0  # after which a replica that was ready is forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolProgress:
    """What is known beside the replicas that are there."""

    starting_since_s: tuple[float, ...] = ()  # for each that is not ready: since when it has been wanted
    start_s: float = 0.0  # from wanted to ready, as measured; 0: not yet
    num_stopping: int = 0  # of the ready ones: they are to stop, and have not said so


class ProgressWatch:
    """Owns since when the missing replicas of one pool have been wanted.

    They are nobody yet, so only their number is seen: the first that was wanted is taken to be the first that comes,
    and the last to be the one that is given up. One that dies is missing from then on; one that was only out of sight
    is no new one when it is back.
    """

    def __init__(self) -> None:
        self._since_s: deque[float] = deque()
        self._starts_s: deque[float] = deque(maxlen=NUM_STARTS)
        self._seen_s: dict[str, float] = {}  # when each was last ready, by incarnation

    def look(self, target: int, ready: Collection[str], now_s: float) -> PoolProgress:
        """One more look at the pool; `ready` has incarnations."""
        num_new = sum(each not in self._seen_s for each in ready)
        for _ in range(min(num_new, len(self._since_s))):
            self._starts_s.append(now_s - self._since_s.popleft())
        self._seen_s |= dict.fromkeys(ready, now_s)
        self._seen_s = {each: seen_s for each, seen_s in self._seen_s.items() if now_s - seen_s < OUT_OF_SIGHT_S}
        num_missing = max(0, target - len(ready))
        while len(self._since_s) > num_missing:
            self._since_s.pop()
        while len(self._since_s) < num_missing:
            self._since_s.append(now_s)
        return PoolProgress(
            starting_since_s=tuple(self._since_s),
            start_s=median(self._starts_s) if self._starts_s else 0.0,
            num_stopping=max(0, len(ready) - target),
        )
