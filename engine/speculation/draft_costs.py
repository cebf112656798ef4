"""Time that drafted tokens add to a step, estimated from the times of steps that had some."""

from dataclasses import dataclass

from baton.engine.speculation.price import StepCost

DECAY = 0.95  # of a step's weight with each later step with drafts
TRUSTED_STEPS = 3  # until then the times count little: first steps of a shape may be much slower
RIDGE = 0.01  # if all steps have equally many drafts, the time is that of the drafts


@dataclass(slots=True)
class DraftCosts:
    """Least-squares fit of the time that drafts add to a step: fixed, and for each drafted token.

    Each step counts by its time per drafted token, relative to a step without drafts.
    """

    _num_steps: int = 0
    _ones: float = 0.0  # decayed sums of products of the columns and the target
    _fixed: float = 0.0
    _fixed_squares: float = 0.0
    _target: float = 0.0
    _fixed_target: float = 0.0

    def add(self, num_drafted: int, step_s: float, plain_s: float) -> None:
        """Add a step with drafts. plain_s: its time without them, estimated; ignored if it is not known.

        A drafted token counts as no longer than a whole step: a step that was delayed says little.
        """
        if plain_s <= 0:
            return
        self._num_steps += 1
        target = min(max(step_s / plain_s - 1, 0.0) / num_drafted, 1.0)
        column = 1 / num_drafted
        self._ones = DECAY * self._ones + 1
        self._fixed = DECAY * self._fixed + column
        self._fixed_squares = DECAY * self._fixed_squares + column * column
        self._target = DECAY * self._target + target
        self._fixed_target = DECAY * self._fixed_target + column * target

    def of(self, plain_s: float, sequence_s: float) -> StepCost:
        """Return the cost of a step of decodes.

        plain_s: time of the step without drafts. sequence_s: time that another sequence adds; that of a drafted token
        is taken to be the same until enough steps are known.
        """
        if self._num_steps < TRUSTED_STEPS:
            return StepCost(plain_s, 0.0, sequence_s)
        squares = self._fixed_squares * (1 + RIDGE)
        determinant = squares * self._ones - self._fixed**2
        fixed = (self._fixed_target * self._ones - self._fixed * self._target) / determinant
        each = (squares * self._target - self._fixed * self._fixed_target) / determinant
        if fixed < 0:
            fixed, each = 0.0, self._target / self._ones
        elif each < 0:
            fixed, each = self._fixed_target / squares, 0.0
        return StepCost(plain_s, fixed * plain_s, each * plain_s)
