"""Steps that are not launched ahead, since drafts may follow the token that is not known yet."""

from dataclasses import dataclass

import pytest

from baton.engine.kv.block_manager import BlockManager
from baton.engine.request import FinishRule, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.scheduling.step_rates import StepRates
from baton.engine.speculation.lookup import LookupDrafter
from baton.engine.speculation.price import StepCost
from baton.engine.speculation.speculator import Speculator
from tests.unit.engine.scheduler_rig import BLOCK_SIZE, Rig
from tests.unit.engine.speculation.free_drafts import FreeDrafts
from tests.unit.engine.speculation.test_speculative_scheduling import RandomDrafter

NUM_STEPS = 3000
GUESS = 7


@dataclass
class FixedDrafts(FreeDrafts):
    """Drafts of a fixed cost."""

    draft_s: float = 0.1

    def of(self, plain_s: float, sequence_s: float) -> StepCost:
        return StepCost(1.0, self.draft_s, self.draft_s)


@dataclass
class Guess:
    """Proposes the same tokens, or none."""

    has_proposal: bool = True

    def begin_step(self) -> None:
        """Do nothing."""

    def propose(self, request: Request, limit: int) -> list[int]:
        """Propose tokens."""
        return [GUESS] * limit if self.has_proposal else []


def num_held_up(draft_s: float, is_right: bool, proposes_behind: bool) -> int:
    """Count the steps that are held up. The guess is right or wrong, and behind it there is a proposal or none."""
    rule, blocks = FinishRule(frozenset(), max_model_len=10_000), BlockManager(1000, BLOCK_SIZE, False)
    speculator = Speculator(
        5, LookupDrafter(drafter := Guess(), rule), blocks, rule, lambda: StepRates(decode_step_s=1.0)
    )
    speculator._costs = FixedDrafts(draft_s=draft_s)
    request = Request(RequestId("a"), [1, 2, 3], 3, SamplingParams(max_tokens=9_000), num_computed_tokens=2)
    count = 0
    for _ in range(NUM_STEPS):
        drafter.has_proposal = True
        is_held_up = speculator.holds_up([ScheduledRequest.of(request, 1)])
        request.token_ids.append(GUESS if is_right else 1)
        request.num_computed_tokens += 1
        if is_held_up:
            count += 1
            drafter.has_proposal = proposes_behind
            items = [ScheduledRequest.of(request, 1)]
            speculator.add_drafts(items, most=100)
            if items[0].drafts:
                assert speculator.holds_up(items)
                speculator.note(items[0], len(items[0].drafts) if is_right else 0)
    return count


def test_guesses_hold_up_steps_only_as_long_as_they_are_right() -> None:
    """Although none of them is ever verified as a draft."""
    assert num_held_up(0.1, is_right=True, proposes_behind=False) == NUM_STEPS
    assert 5 < num_held_up(0.1, is_right=False, proposes_behind=False) < 0.02 * NUM_STEPS


@pytest.mark.parametrize("proposes_behind", [False, True])
@pytest.mark.parametrize("is_right", [False, True])
def test_only_probes_hold_up_steps_if_drafts_do_not_pay(is_right: bool, proposes_behind: bool) -> None:
    assert 5 < num_held_up(1.0, is_right, proposes_behind) < 0.02 * NUM_STEPS


def test_nothing_is_proposed_for_a_step_that_cannot_be_launched_ahead() -> None:
    drafter = RandomDrafter(0)
    rig = Rig(drafter=drafter)
    rig.add("a", [1, 2, 3], 60)
    rig.step()
    drafter.most = 0
    rig.add("b", [1, 2, 3], 60).sampling = SamplingParams(max_tokens=60, logprobs=1)
    schedule = rig.scheduler.schedule()
    drafter.propose = None  # type: ignore[assignment,method-assign]
    assert not rig.scheduler.schedule_ahead(schedule.requests)
