"""Time that drafted tokens add to a step, estimated from the times of steps that had some."""

import sys
from dataclasses import dataclass

from baton.engine.speculation.price import StepCost

DECAY = 0.95  # of a step's weight with each later step with drafts
TRUSTED_STEPS = 4  # until then the times count little: first steps of a shape may be much slower
FEW_DRAFTS = 4
RIDGE = 0.01  # if all steps have equally many drafts, the time is that of the drafts
FIRST_AGE, LAST_AGE = 64, 1024  # steps without drafts after which the times are measured again


@dataclass(slots=True)
class DraftCosts:
    """Least-squares fit of the time that drafts add to a step: fixed, and for each drafted token.

    Errors are relative to the step's time, as in `StepTimes`, so that a delayed step counts little.
    """

    _num_steps: int = 0  # since the times were last given up
    _age: int = 0  # steps that could have had drafts, and had none, since the last one that had some
    _longest_age: int = FIRST_AGE
    _ones: float = 0.0  # decayed sums of products of the columns and the target
    _counts: float = 0.0
    _squares: float = 0.0
    _target: float = 0.0
    _count_target: float = 0.0

    def add(self, num_drafted: int, step_s: float, plain_s: float) -> None:
        """Add a step with drafts. plain_s: its time without them, estimated; ignored if it is not known.

        A drafted token counts as no longer than a whole step.
        """
        if plain_s <= 0 or step_s <= 0:
            return
        self._age = 0
        self._num_steps += 1
        if self._num_steps > 2 * TRUSTED_STEPS:  # they pay
            self._longest_age = FIRST_AGE
        weight = step_s**-2
        target = weight * min(max(step_s - plain_s, 0.0), num_drafted * plain_s)
        self._ones = DECAY * self._ones + weight
        self._counts = DECAY * self._counts + weight * num_drafted
        self._squares = DECAY * self._squares + weight * num_drafted**2
        self._target = DECAY * self._target + target
        self._count_target = DECAY * self._count_target + target * num_drafted

    @property
    def most_drafts(self) -> int:
        """Drafted tokens that a step may have: as long as their time is not known, one or a few in turn."""
        if self._num_steps >= TRUSTED_STEPS:
            return sys.maxsize
        return FEW_DRAFTS if self._num_steps % 2 else 1

    def leave_out(self) -> None:
        """Note a step that could have had drafts, and had none at this price.

        After many of them, the times are given up: they may have been measured while the machine was busy.
        """
        self._age += 1
        if self._age >= self._longest_age:
            self._age = self._num_steps = 0
            self._ones = self._counts = self._squares = self._target = self._count_target = 0.0
            self._longest_age = min(2 * self._longest_age, LAST_AGE)

    def of(self, plain_s: float, sequence_s: float) -> StepCost:
        """Return the cost of a step of decodes.

        plain_s: time of the step without drafts. sequence_s: time that another sequence adds; that of a drafted token
        is taken to be the same until enough steps are known.
        """
        if self._num_steps < TRUSTED_STEPS:
            return StepCost(plain_s, 0.0, sequence_s)
        ones = self._ones * (1 + RIDGE)
        determinant = ones * self._squares - self._counts**2
        fixed = (self._target * self._squares - self._counts * self._count_target) / determinant
        each = (ones * self._count_target - self._counts * self._target) / determinant
        if fixed < 0:
            fixed, each = 0.0, self._count_target / self._squares
        elif each < 0:
            fixed, each = self._target / ones, 0.0
        return StepCost(plain_s, fixed, each)
