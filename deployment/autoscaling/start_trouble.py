"""Replicas that were asked for and do not come."""

from dataclasses import dataclass

from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.input_check import known
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import PoolSnapshot, PoolsSnapshot

SLOW_START = 2.0  # times the measured start: a replica that takes so long still comes


@dataclass(frozen=True, slots=True)
class StartTrouble:
    """There are fewer GPUs than the budget says: until a time as many are believed in as did come."""

    believed_gpus: int
    until_s: float
    retry_after_s: float  # twice as long after each time that more was tried in vain

    def believed(self, budget: Budget, now_s: float) -> Budget:
        """The budget to plan with."""
        return Budget(min(budget.gpus, self.believed_gpus), budget.limits) if now_s < self.until_s else budget


@dataclass(frozen=True, slots=True)
class StartWatch:
    """What a look at the starting replicas says."""

    came: ByPool[int]  # replicas that are not overdue
    granted: ByPool[int]  # what was, less the overdue ones that can be done without
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
        """Trouble begins anew with an overdue replica, and ends when more came than was believed, or when it is old."""
        now_s = snapshot.now_s
        came = snapshot.pools.map(lambda pool: pool.num_live - num_overdue(pool, now_s, settings.start_timeout_s))
        left = ByPool(
            _left(came.prefill, snapshot.prefill.pool, granted.prefill, budget.least.prefill),
            _left(came.decode, snapshot.decode.pool, granted.decode, budget.least.decode),
        )
        if left != granted:
            there = budget.cost(came) + budget.cost(snapshot.pools.map(lambda pool: pool.num_draining))
            retry_after_s = _retry_after_s(trouble, now_s, settings)
            return cls(came, left, StartTrouble(there, now_s + retry_after_s, retry_after_s))
        ready = budget.cost(snapshot.pools.map(lambda pool: pool.num_ready))
        if trouble is not None:
            is_old = now_s >= trouble.until_s + settings.max_retry_after_s
            trouble = None if is_old or ready > trouble.believed_gpus else trouble
        return cls(came, granted, trouble)


def _retry_after_s(trouble: StartTrouble | None, now_s: float, settings: ScalingSettings) -> float:
    """Doubled if more was tried in vain; those that were asked for one after the other fail as one."""
    if trouble is None:
        return min(settings.retry_after_s, settings.max_retry_after_s)
    factor = 2 if now_s >= trouble.until_s else 1
    return min(factor * trouble.retry_after_s, settings.max_retry_after_s)


def _left(came: int, pool: PoolSnapshot, granted: int, least: int) -> int:
    return granted if came == pool.num_live else min(granted, max(came, least))


def num_overdue(pool: PoolSnapshot, now_s: float, start_timeout_s: float) -> int:
    """Replicas that have been starting for too long, and for much longer than others took."""
    longest_s = max(start_timeout_s, SLOW_START * known(pool.start_s, 0.0))
    return sum(now_s - since_s > longest_s for since_s in pool.starting_since_s)
