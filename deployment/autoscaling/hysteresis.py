"""A pool's size, that follows its load slowly enough not to swing.

A size grows only after every look for a while asked for more, to the least that any of them asked for, and shrinks only
after every look for longer could do with fewer, to the most that any of them asked for (as Kubernetes' horizontal
autoscaler takes the extremes of its stabilisation windows). Under a load that only fluctuates this still swings, in the
rhythm of the delays. So a pool turns, from growing to shrinking or back, once in `turn_s`; sooner only for what is no
chance (`split.sure_split`, `band.unhurried`). A turn is one of what the pool was given; what was only wanted has moved
nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from baton.deployment.autoscaling.band import Band
from baton.deployment.autoscaling.settings import ScalingSettings


@dataclass(frozen=True, slots=True)
class Streak:
    """Looks that all asked for another size, without a break."""

    since_s: float
    size: int  # what the most moderate of them asked for

    def lasted(self, now_s: float, delay_s: float) -> bool:
        """Whether that is long enough."""
        return now_s - self.since_s >= delay_s


@dataclass(frozen=True, slots=True)
class SizeState:
    """The size that is wanted, and what speaks for another."""

    wanted: int
    above: Streak | None = None
    below: Streak | None = None
    has_grown: bool | None = None  # by the last change of what it was given; None: that has not changed
    turned_s: float | None = None  # when that last changed to the other direction

    def without_streaks(self) -> "SizeState":
        """After a pause, in which nobody looked."""
        return replace(self, above=None, below=None)

    def after(self, band: Band, sure: Band, now_s: float, settings: ScalingSettings) -> "SizeState":
        """The size after one more look."""
        may_turn = self.may_turn(now_s, settings.turn_s)
        grow = band if may_turn or self.has_grown is not False else sure
        above = _streak(self.above, now_s, grow.least, min) if grow.least > self.wanted else None
        below = _streak(self.below, now_s, band.most, max) if band.most < self.wanted else None
        looked = replace(self, above=above, below=below)
        if above is not None and above.lasted(now_s, grow.grow_delay_s):
            return replace(self, wanted=above.size, above=None, below=None)
        if below is not None and below.lasted(now_s, band.shrink_delay_s):
            may_shrink = may_turn or self.has_grown is not True or sure.is_pressed
            return replace(self, wanted=below.size, above=None, below=None) if may_shrink else looked
        return looked

    def taken_back(self, size: int) -> "SizeState":
        """What did not come, or was never given, is not wanted any more; that is no change of direction."""
        return replace(self, wanted=size, above=None) if size < self.wanted else self

    def raised(self, size: int) -> "SizeState":
        """At least so many, at once."""
        return replace(self, wanted=size, below=None) if size > self.wanted else self

    def may_turn(self, now_s: float, turn_s: float) -> bool:
        """Whether its last turn was long enough ago."""
        return self.turned_s is None or now_s - self.turned_s >= turn_s

    def may_become(self, size: int, given: int, now_s: float, turn_s: float) -> bool:
        """Whether that from what it is given would be no turn too soon."""
        is_turn = size != given and self.has_grown is not None and self.has_grown is not (size > given)
        return not is_turn or self.may_turn(now_s, turn_s)

    def given(self, before: int, size: int, now_s: float) -> "SizeState":
        """After it was given another size than before."""
        if size == before:
            return self
        grows = size > before
        is_turn = self.has_grown is not None and self.has_grown is not grows
        return replace(self, has_grown=grows, turned_s=now_s if is_turn else self.turned_s)


def _streak(streak: Streak | None, now_s: float, size: int, moderate: Callable[[int, int], int]) -> Streak:
    """The streak with one more look."""
    if streak is None:
        return Streak(now_s, size)
    return Streak(streak.since_s, moderate(streak.size, size))
