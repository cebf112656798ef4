"""Lockstep of the ranks of an expert-parallel group.

1. Every step starts with an agreement: the ranks exchange how many tokens each of them has.
2. If any rank has tokens, all compute the step; ranks without tokens compute only their experts. If no rank has tokens,
   all go to sleep.
3. A rank that gets work while the group sleeps wakes the others, and they agree again.
4. When a rank is lost or another epoch begins, the remaining ranks re-form the group and repeat the step. That is safe
   at any point: results are applied only after the whole step, writing the same KV twice is harmless, and sampling
   noise depends only on seed and position. Ranks may have progressed to different points of the step.
"""

from collections.abc import Callable
from typing import TypeVar

from baton.engine.errors import EngineEnded, GroupBroken
from baton.engine.experts.group import ExpertGroup

T = TypeVar("T")


class Lockstep:
    """Steps of one rank, synchronised with its group; all calls must come from the engine's thread."""

    def __init__(self, group: ExpertGroup) -> None:
        """Start at round 0 of a group that has formed."""
        self._group = group
        self._round = 0  # number of agreements in the current epoch
        self._woken_round = 0  # newest round started by another rank, perhaps without this one
        self._woken_epoch = 0
        self._is_asleep = False

    @property
    def is_round_pending(self) -> bool:
        """Whether this rank must take part in a step, even if it has nothing to compute."""
        if self._group.ranks.has_left:
            return False
        if not self._group.ranks.is_current or not self._is_asleep:
            return True
        return self._woken_epoch == self._group.ranks.view.epoch and self._woken_round > self._round

    @property
    def is_waiting(self) -> bool:
        """Whether this rank waits for other ranks."""
        return self._group.ranks.is_waiting

    @property
    def is_forming(self) -> bool:
        """Whether the group is being formed."""
        return self._group.ranks.is_forming

    @property
    def is_short(self) -> bool:
        """Whether the group has too few ranks and waits for more."""
        return self._group.ranks.is_short

    @property
    def epoch(self) -> int:
        """Epoch of the formed group; 0 while there is none."""
        return self._group.ranks.view.epoch if self._group.ranks.is_formed else 0

    def woken(self, epoch: int, round_number: int) -> None:
        """Note that another rank has started a round of agreement and may be waiting for this one."""
        self._woken_epoch, self._woken_round = max((self._woken_epoch, self._woken_round), (epoch, round_number))

    def run(self, num_tokens: int, compute: Callable[[], T], compute_idle: Callable[[], None]) -> T | None:
        """Run one step of the group, re-forming it as often as needed; None if this rank had nothing to compute."""
        while True:
            try:
                if not self._group.ranks.is_current:
                    self._form()
                if not self._agree(num_tokens):
                    return None
                if num_tokens:
                    return compute()
                compute_idle()
                return None
            except GroupBroken as error:
                self._group.abandon_epoch(error)
                if self._group.ranks.has_left and not num_tokens:
                    return None
            except EngineEnded:  # this rank left while the group was re-forming
                if num_tokens:
                    raise
                return None

    def leave(self) -> None:
        """Take part in no further step. May be called on any thread, before the membership reports it to the others."""
        self._group.ranks.leave()

    def close(self) -> None:
        """End the process group, between steps; the other ranks' collectives then fail."""
        self._group.close()

    def _form(self) -> None:
        self._group.leave_epoch()
        self._group.form()
        self._round = 0
        self._is_asleep = False

    def _agree(self, num_tokens: int) -> bool:
        """Agree on a step with all ranks; returns whether any rank has tokens to compute."""
        self._round += 1
        if self._is_asleep and num_tokens:
            self._group.membership.wake(self._group.ranks.view.epoch, self._round)
        self._is_asleep = not self._group.step(num_tokens)
        return not self._is_asleep
