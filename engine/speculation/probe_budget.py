"""Time that an engine may spend on drafts which are not expected to pay."""

from baton.engine.speculation.price import StepCost

SHARE = 0.01  # of the time of steps
MAX_STEPS = 4.0  # times of a step that are saved up at most


class ProbeBudget:
    """Budget of time for probes: a share of the time of all steps with proposed drafts."""

    def __init__(self) -> None:
        self._saved_s = 0.0

    def earn(self, cost: StepCost) -> None:
        """Add the share of one more step."""
        if cost.plain_s:
            self._saved_s = min(self._saved_s + SHARE * cost.plain_s, MAX_STEPS * cost.plain_s)

    def affordable(self, num_due: int, cost: StepCost) -> int:
        """Return how many of `num_due` requests may have a probe of one token in the next step."""
        left_s = self._saved_s - cost.drafting_s - cost.pass_s
        if left_s <= 0:
            return 0
        return num_due if num_due * cost.draft_s <= left_s else int(left_s / cost.draft_s)

    def spend(self, num_probes: int, cost: StepCost) -> None:
        """Note a step with probes."""
        if num_probes:
            self._saved_s -= cost.drafting_s + cost.pass_s + num_probes * cost.draft_s
