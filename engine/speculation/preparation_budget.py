"""Time that may be spent on preparing a drafter for requests."""

from baton.engine.speculation.price import StepCost

SHARE = 0.01  # of the time of steps
MAX_STEPS = 64.0  # times of a step that are saved up at most, and lent at the start


class PreparationBudget:
    """Budget of time: what drafts have saved, and a share of the time of all steps that could have had drafts.

    Preparing pays only later, and not at all if the drafts are wrong or the request ends soon. Since it takes no more
    time than was saved before, apart from that share and a loan at the start, an engine is never slower for long.
    """

    def __init__(self) -> None:
        self._left_s: float | None = None  # None: the time of a step is not known yet

    @property
    def left_s(self) -> float:
        """Time that may be spent now."""
        return self._left_s or 0.0

    def earn(self, cost: StepCost) -> None:
        """Add the share of one more step."""
        if cost.plain_s:
            most_s = MAX_STEPS * cost.plain_s
            self._left_s = most_s if self._left_s is None else min(self._left_s + SHARE * cost.plain_s, most_s)

    def add(self, saved_s: float) -> None:
        """Add the time that a step's drafts saved; negative if they took more."""
        if self._left_s is not None:
            self._left_s = max(self._left_s + saved_s, 0.0)

    def spend(self, preparation_s: float) -> None:
        """Note the time of a preparation."""
        self.add(-preparation_s)
