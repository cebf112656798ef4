"""Lockstep of the ranks of an expert-parallel group.

1. Every step starts with an agreement: the ranks exchange how many tokens each of them has.
2. If any rank has tokens, all compute the step; ranks without tokens compute only their experts. If no rank has tokens,
   all go to sleep.
3. A rank that gets work while the group sleeps wakes the others, and they agree again. A rank that was woken and then
   waits for others for long wakes them too, so that a forged wake costs a round without work and no more.
4. When a rank is lost or another epoch begins, the remaining ranks re-form the group and repeat the step. That is safe
   at any point: results are applied only after the whole step, writing the same KV twice is harmless, and sampling
   noise depends only on seed and position. Ranks may have progressed to different points of the step. A rank whose
   step changes recurrent state does not repeat it: it goes back to an earlier state first, and computes another step.
"""

from collections.abc import Callable
from typing import TypeVar

from baton.engine.errors import EngineEnded, GroupBroken
from baton.engine.experts.group import ExpertGroup

T = TypeVar("T")


def is_next_round(epoch: int, round_number: int, current_epoch: int, current_round: int) -> bool:
    """Return whether a wake is for the round after the current one.

    No other wake needs a response. A rank starts a round only after all ranks have begun the previous one: a wake for
    an earlier round is late, and one for a later round, or for an epoch that this rank has not formed, is forged.
    """
    return epoch == current_epoch and round_number == current_round + 1


class Lockstep:
    """Steps of one rank, synchronised with its group; all calls must come from the engine's thread."""

    def __init__(self, group: ExpertGroup) -> None:
        """Start at round 0 of a group that has formed."""
        self._group = group
        self._round = 0  # number of agreements in the current epoch
        self._is_asleep = False
        self._is_woken = False  # another rank has started the next round

    @property
    def is_round_pending(self) -> bool:
        """Whether this rank must take part in a step, even if it has nothing to compute."""
        if self.has_left:
            return False
        return not self._group.ranks.is_current or not self._is_asleep or self._is_woken

    @property
    def has_left(self) -> bool:
        """Whether this rank has left its group for good."""
        return self._group.ranks.has_left

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
        """Whether the group has too few ranks and waits for more, or for an epoch without those that are lost."""
        return self._group.ranks.is_short

    @property
    def resumed_s(self) -> float:
        """Monotonic time at which the group last ended such a wait, or had formed an epoch."""
        return self._group.ranks.resumed_s

    @property
    def epoch(self) -> int:
        """Epoch of the formed group; 0 while there is none."""
        return self._group.ranks.view.epoch if self._group.ranks.is_formed else 0

    def woken(self, epoch: int, round_number: int) -> None:
        """Note that another rank has started a round of agreement and may be waiting for this one.

        A wake for any round but the next, or for another epoch, is ignored: see `is_next_round`.
        """
        if is_next_round(epoch, round_number, self.epoch, self._round):
            self._is_woken = True

    def run(
        self, num_tokens: int, compute: Callable[[], T], compute_idle: Callable[[], None], *, can_repeat: bool = True
    ) -> T | None:
        """Run one step of the group, re-forming it as often as needed; None if this rank had nothing to compute.

        can_repeat: otherwise a step that was broken off after it began also returns None, and the next one re-forms.
        """
        has_begun = False
        while True:
            try:
                if not self._group.ranks.is_current:
                    self._form()
                if not self._agree(num_tokens):
                    return None
                if num_tokens:
                    has_begun = True
                    return compute()
                compute_idle()
                return None
            except GroupBroken as error:
                self._group.abandon_epoch(error)
                if (self.has_left and not num_tokens) or (has_begun and not can_repeat):
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
        self._is_asleep = self._is_woken = False

    def _agree(self, num_tokens: int) -> bool:
        """Agree on a step with all ranks; returns whether any rank has tokens to compute."""
        self._round += 1
        self._is_woken = False
        is_starting = self._is_asleep and num_tokens > 0
        if is_starting:
            self._wake_others()
        is_woken = self._is_asleep and not is_starting  # others may still sleep, if the wake was forged
        self._is_asleep = not self._group.step(num_tokens, self._wake_others if is_woken else None)
        return not self._is_asleep

    def _wake_others(self) -> None:
        self._group.membership.wake(self._group.ranks.view.epoch, self._round)
