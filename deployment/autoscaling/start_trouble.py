"""Replicas that were requested and fail to start."""

from dataclasses import dataclass

from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.input_check import known
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import PoolSnapshot, PoolsSnapshot

SLOW_START = 2.0  # a start of up to this factor of the measured start time is not overdue


@dataclass(frozen=True, slots=True)
class StartTrouble:
    """Fewer GPUs than the budget exist: until `until_s`, only those that were obtained are planned with."""

    believed_gpus: int
    until_s: float
    retry_after_s: float  # doubles after each failed attempt to get more

    def believed(self, budget: Budget, now_s: float) -> Budget:
        """Return the budget to plan with."""
        return Budget(min(budget.gpus, self.believed_gpus), budget.limits) if now_s < self.until_s else budget


@dataclass(frozen=True, slots=True)
class StartWatch:
    """Overdue starts of one snapshot."""

    arrived: ByPool[int]  # replicas that are not overdue
    granted: ByPool[int]  # previously granted sizes without overdue replicas, but at least the minimum
    trouble: StartTrouble | None

    @classmethod
    def of(
        cls,
        snapshot: PoolsSnapshot,
        granted: ByPool[int],
        budget: Budget,
        trouble: StartTrouble | None,
        settings: ScalingSettings,
    ) -> "StartWatch":
        """Check for overdue starts.

        An overdue replica starts or extends the trouble. It ends when more GPUs than assumed are ready, or by age.
        """
        now_s = snapshot.now_s
        arrived = snapshot.pools.map(lambda pool: pool.num_live - num_overdue(pool, now_s, settings.start_timeout_s))
        left = ByPool(
            _left(arrived.prefill, snapshot.prefill.pool, granted.prefill, budget.least.prefill),
            _left(arrived.decode, snapshot.decode.pool, granted.decode, budget.least.decode),
        )
        if left != granted:
            obtained = budget.cost(arrived) + budget.cost(snapshot.pools.map(lambda pool: pool.num_draining))
            retry_after_s = _retry_after_s(trouble, now_s, settings)
            return cls(arrived, left, StartTrouble(obtained, now_s + retry_after_s, retry_after_s))
        ready = budget.cost(snapshot.pools.map(lambda pool: pool.num_ready))
        if trouble is not None:
            is_old = now_s >= trouble.until_s + settings.max_retry_after_s
            trouble = None if is_old or ready > trouble.believed_gpus else trouble
        return cls(arrived, granted, trouble)


def _retry_after_s(trouble: StartTrouble | None, now_s: float, settings: ScalingSettings) -> float:
    """Return the retry delay, doubled after a failed retry; starts that were requested together fail as one."""
    if trouble is None:
        return min(settings.retry_after_s, settings.max_retry_after_s)
    factor = 2 if now_s >= trouble.until_s else 1
    return min(factor * trouble.retry_after_s, settings.max_retry_after_s)


def _left(arrived: int, pool: PoolSnapshot, granted: int, least: int) -> int:
    return granted if arrived == pool.num_live else min(granted, max(arrived, least))


def num_overdue(pool: PoolSnapshot, now_s: float, start_timeout_s: float) -> int:
    """Return the number of replicas that have been starting for over `start_timeout_s` and SLOW_START."""
    longest_s = max(start_timeout_s, SLOW_START * known(pool.start_s, 0.0))
    return sum(now_s - since_s > longest_s for since_s in pool.starting_since_s)
