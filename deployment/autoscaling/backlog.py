"""Queued work, and the replicas needed to clear it."""

from dataclasses import dataclass, replace
from math import ceil, inf

from baton.deployment.autoscaling.snapshot import PoolSnapshot


@dataclass(frozen=True, slots=True)
class Backlog:
    """Queued and arriving work in any unit. Each replica completes `done_per_s`."""

    queued: float
    arriving_per_s: float
    done_per_s: float

    def lowered(self, share: float) -> "Backlog":
        """Return the same queue with arrivals reduced by `share`."""
        return replace(self, arriving_per_s=self.arriving_per_s * (1 - share))

    def left(self, pool: PoolSnapshot, now_s: float, start_s: float) -> float:
        """Return the work left in the queue when a replica requested now becomes ready.

        Fluid approximation: the queue plus arrivals, minus the work of ready replicas and, once started, of those that
        are starting. The oldest wait is a lower bound: all arrivals since then must still be queued.
        """
        queued = max(self.queued, self.arriving_per_s * pool.oldest_wait_s)
        helped_s = sum(min(start_s, max(0.0, now_s - since_s)) for since_s in pool.starting_since_s)
        served_s = pool.num_ready * start_s + helped_s
        return max(0.0, queued + self.arriving_per_s * start_s - self.done_per_s * served_s)

    def need(self, pool: PoolSnapshot, now_s: float, start_s: float, ttft_s: float, most: int) -> int:
        """Return the replicas, at most `most`, that clear the remaining queue within TTFT or a start time, if longer.

        A replica that takes a minute to start cannot help a request with a TTFT of a second; a pool large enough to do
        so would be idle a moment later.
        """
        if self.done_per_s == inf:
            return 0
        left = self.left(pool, now_s, start_s)
        if not left:
            return 0
        to_do_per_s = self.arriving_per_s + left / max(ttft_s, start_s)
        return ceil(to_do_per_s / self.done_per_s) if to_do_per_s < most * self.done_per_s else most
