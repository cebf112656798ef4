"""A drafter whose drafts do not pay rests, ever longer."""

import pytest

from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.speculation.acceptance import Acceptance
from baton.engine.speculation.base import Offer
from baton.engine.speculation.draft_plan import DraftPlan, Prices, Proposal
from baton.engine.speculation.price import StepCost
from baton.engine.speculation.probe_budget import ProbeBudget
from baton.engine.speculation.rest import FIRST_REST, IDLE_STEPS, LAST_REST, PAYING_STEPS, Rest


def resting(num_sequences: int = 8) -> Rest:
    """A rest that has just begun."""
    rest = Rest()
    for _ in range(IDLE_STEPS):
        assert not rest.take(num_sequences)
        rest.note(num_sequences, pays=False)
    return rest


def length(rest: Rest, num_sequences: int = 8) -> int:
    """Take all of a rest."""
    while rest.take(num_sequences):
        pass
    return rest.end()


def test_rests_become_longer_until_drafts_pay() -> None:
    rest = resting()
    lengths = [length(rest)]
    while lengths[-1] < LAST_REST:
        for _ in range(IDLE_STEPS):
            rest.note(8, pays=False)
        lengths.append(length(rest))
    assert lengths == [FIRST_REST << place for place in range(len(lengths))]
    for _ in range(PAYING_STEPS):
        rest.note(8, pays=True)
    for _ in range(IDLE_STEPS):
        assert not rest.take(8)
        rest.note(8, pays=False)
    assert length(rest) == FIRST_REST
    assert rest.end() == 0


@pytest.mark.parametrize("place", range(IDLE_STEPS))
def test_one_paying_plan_begins_the_count_anew(place: int) -> None:
    rest = Rest()
    for number in range(IDLE_STEPS + place):
        rest.note(8, pays=number == place)
        assert not rest.take(8)
    rest.note(8, pays=False)
    assert rest.take(8)


def test_a_smaller_batch_ends_a_rest() -> None:
    rest = resting(8)
    assert rest.take(5)
    assert rest.take(0)  # a step of prompts alone
    assert rest.take(16)
    assert not rest.take(4)
    assert not rest.take(8)
    assert rest.end() == 3


@pytest.mark.parametrize(("draft_s", "pays"), [(0.01, True), (2.0, False)])
def test_drafts_pay_though_the_outputs_at_hand_are_too_short(draft_s: float, pays: bool) -> None:
    """A longer one may come at any time: the drafter must not rest then."""
    request = Request(RequestId("a"), [1], 1, SamplingParams(max_tokens=3))
    offer = Offer(4, is_ready=False, preparation_s=50.0)
    proposal = Proposal(0, request, offer, Acceptance(_tested=10.0, _accepted=9.0), num_left=2)
    prices = Prices(StepCost(1.0, 0.0, draft_s), lambda _: draft_s, 1, 100)
    plan = DraftPlan.of([proposal], prices, ProbeBudget(), is_trial_due=False)
    assert (not plan.unready, not any(plan.lengths), plan.pays) == (True, True, pays)
