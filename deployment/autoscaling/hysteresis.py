"""Hysteresis of a pool's size, so that it does not oscillate.

A pool grows only if every snapshot during a delay asked for more, to the smallest size that any of them asked for. It
shrinks only if every snapshot during a longer delay asked for less, to the largest such size (like the stabilization
windows of Kubernetes' horizontal pod autoscaler). With a fluctuating load this still oscillates at the period of the
delays. So a pool changes direction at most once in `turn_s`; earlier only for changes that are not chance
(`split.sure_split`, `band.unhurried`). Only granted sizes count as a change of direction, not sizes that were merely
wanted.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from baton.deployment.autoscaling.band import Band
from baton.deployment.autoscaling.settings import ScalingSettings


@dataclass(frozen=True, slots=True)
class Streak:
    """Consecutive snapshots that all asked for a change in one direction."""

    since_s: float
    size: int  # the smallest change that any of them asked for

    def lasted(self, now_s: float, delay_s: float) -> bool:
        """Whether the streak is at least `delay_s` old."""
        return now_s - self.since_s >= delay_s


@dataclass(frozen=True, slots=True)
class SizeState:
    """Wanted size of a pool, and the streaks towards another size."""

    wanted: int
    above: Streak | None = None
    below: Streak | None = None
    has_grown: bool | None = None  # direction of the last change of the granted size; None: no change yet
    turned_s: float | None = None  # when that direction last changed

    def without_streaks(self) -> "SizeState":
        """Return the state after a gap without snapshots."""
        return replace(self, above=None, below=None)

    def after(self, band: Band, sure: Band, now_s: float, settings: ScalingSettings) -> "SizeState":
        """Return the state after one more snapshot."""
        may_turn = self.may_turn(now_s, settings.turn_s)
        grow = band if may_turn or self.has_grown is not False else sure
        above = _streak(self.above, now_s, grow.least, min) if grow.least > self.wanted else None
        below = _streak(self.below, now_s, band.most, max) if band.most < self.wanted else None
        unchanged = replace(self, above=above, below=below)
        if above is not None and above.lasted(now_s, grow.grow_delay_s):
            return replace(self, wanted=above.size, above=None, below=None)
        if below is not None and below.lasted(now_s, band.shrink_delay_s):
            may_shrink = may_turn or self.has_grown is not True or sure.is_pressed
            return replace(self, wanted=below.size, above=None, below=None) if may_shrink else unchanged
        return unchanged

    def lowered(self, size: int) -> "SizeState":
        """Return the state with at most this size wanted, for replicas that failed to start or were never granted.

        This does not count as a change of direction.
        """
        return replace(self, wanted=size, above=None) if size < self.wanted else self

    def raised(self, size: int) -> "SizeState":
        """Return the state with at least this size wanted, without a delay."""
        return replace(self, wanted=size, below=None) if size > self.wanted else self

    def may_turn(self, now_s: float, turn_s: float) -> bool:
        """Whether the last change of direction is at least `turn_s` ago."""
        return self.turned_s is None or now_s - self.turned_s >= turn_s

    def may_become(self, size: int, given: int, now_s: float, turn_s: float) -> bool:
        """Whether going from the granted size to `size` is allowed: in the same direction, or after `turn_s`."""
        is_turn = size != given and self.has_grown is not None and self.has_grown is not (size > given)
        return not is_turn or self.may_turn(now_s, turn_s)

    def given(self, before: int, size: int, now_s: float) -> "SizeState":
        """Return the state after the granted size changed from `before` to `size`."""
        if size == before:
            return self
        grows = size > before
        is_turn = self.has_grown is not None and self.has_grown is not grows
        return replace(self, has_grown=grows, turned_s=now_s if is_turn else self.turned_s)


def _streak(streak: Streak | None, now_s: float, size: int, moderate: Callable[[int, int], int]) -> Streak:
    """Return the streak extended by one snapshot."""
    if streak is None:
        return Streak(now_s, size)
    return Streak(streak.since_s, moderate(streak.size, size))
