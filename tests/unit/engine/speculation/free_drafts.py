"""Drafted tokens that cost nothing, so that every one of them is verified."""

import sys

from baton.engine.speculation.draft_costs import DraftCosts
from baton.engine.speculation.price import StepCost


class FreeDrafts(DraftCosts):
    """Times of steps that drafts do not change, whatever is measured."""

    @property
    def most_drafts(self) -> int:
        return sys.maxsize

    def of(self, plain_s: float, sequence_s: float) -> StepCost:
        return StepCost(1.0, 0.0, 0.0)
