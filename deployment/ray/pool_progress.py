"""Progress of a pool towards its target size."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median

NUM_STARTS = 9  # window of the median start time
FORGET_AFTER_S = 600.0  # a replica that was last ready this long ago counts as new when it returns


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolProgress:
    """Replicas that are starting, stopping or changing their role."""

    starting_since_s: tuple[float, ...] = ()  # for each missing replica: when it was requested
    start_s: float = 0.0  # measured, from requested to ready; 0: not measured yet
    num_stopping: int = 0  # ready replicas above the target, which do not report as draining yet
    num_flipping_in: int = 0  # workers that change into this pool's role
    num_flipping_out: int = 0  # replicas that drain before a change to the other role


class ProgressWatch:
    """Request times of one pool's missing replicas.

    A missing replica has no id yet, so only their number is known. They are assumed to become ready in the order in
    which they were requested, and the latest is dropped when the target shrinks. A replica that dies counts as missing
    from then on; one that was only unreachable for a while does not count as new when it returns.
    """

    def __init__(self) -> None:
        self._since_s: deque[float] = deque()
        self._starts_s: deque[float] = deque(maxlen=NUM_STARTS)
        self._seen_s: dict[str, float] = {}  # time when each was last ready, by incarnation

    def note_known(self, incarnation: str, now_s: float) -> None:
        """Take note of a replica that becomes ready without a start: it has changed its role."""
        self._seen_s[incarnation] = now_s

    def update(self, target: int, ready: Collection[str], now_s: float) -> PoolProgress:
        """Update with the pool's target and the incarnations of its ready replicas, and return the progress."""
        num_new = sum(each not in self._seen_s for each in ready)
        for _ in range(min(num_new, len(self._since_s))):
            self._starts_s.append(now_s - self._since_s.popleft())
        self._seen_s |= dict.fromkeys(ready, now_s)
        self._seen_s = {each: seen_s for each, seen_s in self._seen_s.items() if now_s - seen_s < FORGET_AFTER_S}
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
