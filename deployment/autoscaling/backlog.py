"""Work that waits already, and the replicas that it takes to clear it."""

from dataclasses import dataclass, replace
from math import ceil, inf

from baton.deployment.autoscaling.snapshot import PoolSnapshot


@dataclass(frozen=True, slots=True)
class Backlog:
    """Work of any unit, for replicas that do `done_per_s` of it each."""

    queued: float
    arriving_per_s: float
    done_per_s: float

    def lowered(self, share: float) -> "Backlog":
        """The same queue, with so much less coming."""
        return replace(self, arriving_per_s=self.arriving_per_s * (1 - share))

    def left(self, pool: PoolSnapshot, now_s: float, start_s: float) -> float:
        """What is left of the queue when a replica that is asked for now is ready.

        A fluid: what comes, less what those that are ready do until then, and those that are starting from their turn.
        If somebody has waited for long, all that came since is queued too, whatever is said of the queue.
        """
        queued = max(self.queued, self.arriving_per_s * pool.oldest_wait_s)
        helped_s = sum(min(start_s, max(0.0, now_s - since_s)) for since_s in pool.starting_since_s)
        served_s = pool.num_ready * start_s + helped_s
        return max(0.0, queued + self.arriving_per_s * start_s - self.done_per_s * served_s)

    def need(self, pool: PoolSnapshot, now_s: float, start_s: float, ttft_s: float, most: int) -> int:
        """Replicas, at most so many, that clear what will be left beside what comes: within TTFT, or as long as a start
        took.

        A replica that takes a minute to start cannot save a request that has a second; pools of the size that could
        would be idle a moment later.
        """
        if self.done_per_s == inf:
            return 0
        left = self.left(pool, now_s, start_s)
        if not left:
            return 0
        to_do_per_s = self.arriving_per_s + left / max(ttft_s, start_s)
        return ceil(to_do_per_s / self.done_per_s) if to_do_per_s < most * self.done_per_s else most
