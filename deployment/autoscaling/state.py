"""State of the autoscaler between snapshots."""

from dataclasses import dataclass, field, replace
from math import inf

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.correction import Correction
from baton.deployment.autoscaling.grants import Grants
from baton.deployment.autoscaling.hysteresis import SizeState
from baton.deployment.autoscaling.load_history import LoadHistory
from baton.deployment.autoscaling.prompt_split import LocalLimit
from baton.deployment.autoscaling.snapshot import PoolsSnapshot
from baton.deployment.autoscaling.start_trouble import StartTrouble


@dataclass(frozen=True, slots=True)
class ScalingState:
    """State between snapshots. If it is lost, the current sizes are kept until new snapshots ask for a change."""

    updated_s: float
    active_s: float  # when requests were last seen
    sizes: ByPool[SizeState]
    grants: Grants
    corrections: ByPool[Correction] = field(default_factory=lambda: ByPool(Correction(), Correction()))
    trouble: StartTrouble | None = None
    local_share: float = 0.0  # of the requests, that decode workers are planned to prefill
    local_limit: LocalLimit = field(default_factory=LocalLimit)
    history: LoadHistory = field(default_factory=LoadHistory)

    @classmethod
    def of(cls, snapshot: PoolsSnapshot) -> "ScalingState":
        """Return a state that wants the current sizes; pools without replicas are asleep."""
        live = snapshot.pools.map(lambda pool: pool.num_live)
        active_s = snapshot.now_s if any(live.both()) else -inf
        return cls(snapshot.now_s, active_s, live.map(SizeState), Grants(live))

    @property
    def wanted(self) -> ByPool[int]:
        """Sizes wanted at the last snapshot."""
        return self.sizes.map(lambda size: size.wanted)

    @property
    def is_asleep(self) -> bool:
        """Whether both pools are scaled to zero."""
        return not any(self.wanted.both())

    def idle_s(self, now_s: float) -> float:
        """Return the seconds since the last request."""
        return now_s - self.active_s

    def rebased(self, snapshot: PoolsSnapshot) -> "ScalingState":
        """Return a state that wants the current sizes, because replicas moved to the other pool without its flips."""
        live = snapshot.pools.map(lambda pool: pool.num_live)
        sizes = self.sizes.zip(live).map(lambda each: replace(each[0].without_streaks(), wanted=each[1]))
        return replace(self, sizes=sizes, grants=Grants(live))

    def at(self, now_s: float, max_gap_s: float) -> "ScalingState":
        """Return the state at the next snapshot.

        A gap of more than `max_gap_s` resets the streaks; a clock that went back also resets all stored times.
        """
        if now_s < self.updated_s:
            trouble = self.trouble
            if trouble is not None:
                trouble = replace(trouble, until_s=now_s + trouble.retry_after_s)
            sizes = self.sizes.map(lambda size: replace(size.without_streaks(), turned_s=None))
            corrections = self.corrections.map(lambda each: replace(each, steady_since_s=now_s, updated_s=now_s))
            active_s = -inf if self.is_asleep else now_s
            return replace(
                self,
                updated_s=now_s,
                active_s=active_s,
                sizes=sizes,
                corrections=corrections,
                trouble=trouble,
                history=LoadHistory(),
            )
        if now_s - self.updated_s > max_gap_s:
            sizes = self.sizes.map(lambda size: size.without_streaks())
            corrections = self.corrections.map(lambda each: replace(each, broken_since_s=None))
            active_s = self.active_s if self.is_asleep else now_s
            return replace(self, updated_s=now_s, active_s=active_s, sizes=sizes, corrections=corrections)
        return replace(self, updated_s=now_s)
