"""How the ranks of an expert-parallel group step together.

1. Every step begins with an agreement: each rank tells how many tokens it has.
2. If anyone has some, all compute the step, who has none for the experts alone. If nobody has, all fall asleep.
3. Who gets work while the group sleeps wakes the others, and they agree again.
4. When a rank is gone, or another epoch has begun, the ranks that are left form anew and repeat the step. That is safe
   wherever it broke off: a step is taken in only once it is computed whole, KV written twice is the same KV, and the
   noise of sampling follows from seed and position. Ranks need not have come equally far.
"""

from collections.abc import Callable
from typing import TypeVar

from baton.engine.errors import EngineEnded, GroupBroken
from baton.engine.experts.group import ExpertGroup

T = TypeVar("T")


class Lockstep:
    """Owns the turns of one rank; its engine's thread calls everything."""

    def __init__(self, group: ExpertGroup) -> None:
        """group: formed."""
        self._group = group
        self._round = 0  # of agreements in the present epoch
        self._woken_round = 0  # somebody has begun it, perhaps without us
        self._woken_epoch = 0
        self._is_asleep = False

    @property
    def is_called(self) -> bool:
        """Whether this rank must take part in a step, though it may have nothing to compute."""
        if self._group.ranks.has_left:
            return False
        if not self._group.ranks.is_current or not self._is_asleep:
            return True
        return self._woken_epoch == self._group.ranks.view.epoch and self._woken_round > self._round

    @property
    def is_waiting(self) -> bool:
        """Whether other ranks are waited for."""
        return self._group.ranks.is_waiting

    @property
    def is_forming(self) -> bool:
        """Whether the group forms anew."""
        return self._group.ranks.is_forming

    @property
    def is_short(self) -> bool:
        """Whether the group has too few ranks, and waits for more."""
        return self._group.ranks.is_short

    @property
    def epoch(self) -> int:
        """The one that steps are made in; 0 while there is none."""
        return self._group.ranks.view.epoch if self._group.ranks.is_formed else 0

    def woken(self, epoch: int, round_number: int) -> None:
        """Somebody has begun a round of agreement, and may wait for us."""
        self._woken_epoch, self._woken_round = max((self._woken_epoch, self._woken_round), (epoch, round_number))

    def run(self, num_tokens: int, compute: Callable[[], T], compute_idle: Callable[[], None]) -> T | None:
        """One step of the group; None if this rank had nothing to compute. Forms the group anew as often as needed."""
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
                self._group.give_up(error)
                if self._group.ranks.has_left and not num_tokens:
                    return None
            except EngineEnded:  # it left while the group formed anew
                if num_tokens:
                    raise
                return None

    def leave(self) -> None:
        """Takes part in no further step; may be called on any thread, before the membership tells the others."""
        self._group.ranks.leave()

    def close(self) -> None:
        """Ends the process group, once no step is under way: the others notice."""
        self._group.close()

    def _form(self) -> None:
        self._group.leave_epoch()
        self._group.form()
        self._round = 0
        self._is_asleep = False

    def _agree(self, num_tokens: int) -> bool:
        """Whether anyone has something to compute."""
        self._round += 1
        if self._is_asleep and num_tokens:
            self._group.membership.wake(self._group.ranks.view.epoch, self._round)
        self._is_asleep = not self._group.step(num_tokens)
        return not self._is_asleep
