"""Step times with and without drafts."""

from baton.engine.kv.block_manager import BlockManager
from baton.engine.request import FinishRule, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.scheduling.step_clock import MAX_DRAFTED_STEPS, PLAIN_STEPS, StepClock
from baton.engine.scheduling.step_rates import StepRates, StepWork
from baton.engine.speculation.lookup import LookupDrafter
from baton.engine.speculation.ngram import NGramLookup
from baton.engine.speculation.speculator import Speculator


def step(drafts: list[int]) -> list[ScheduledRequest]:
    request = Request(RequestId("1"), [1, 2, 3], 2, SamplingParams(), num_computed_tokens=2)
    return [ScheduledRequest.of(request, 1).with_drafts(drafts)]


class Timed:
    """A clock with a speculator."""

    def __init__(self) -> None:
        self.clock = StepClock()
        rule = FinishRule(frozenset(), max_model_len=100)
        blocks = BlockManager(9, 4, enable_prefix_caching=False)
        self.speculator = Speculator(
            5, LookupDrafter(NGramLookup(2, 5), rule), blocks, rule, self.clock.rates_for_drafts
        )

    def add(self, step_s: float, num_drafted: int = 0, between_s: float = 0.0, looks_ahead: bool = False) -> None:
        """Add a step of one sequence, some time after the last one was collected."""
        scheduled = step([7] * num_drafted)
        work = StepWork.of(scheduled)
        assert work == StepWork(num_sequences=1, num_prompt_tokens=0)
        self.clock.begin_next(100.0)
        started_s = 100.0 + between_s
        self.clock.add(scheduled, work, started_s, started_s + step_s, self.speculator, looks_ahead)


def test_rates_are_those_of_steps_without_drafts() -> None:
    timed = Timed()
    for _ in range(20):
        timed.add(0.01)
        timed.add(0.03, num_drafted=5)
    assert abs(timed.clock.rates().decode_step_s - 0.01) < 1e-4
    assert timed.clock.mean_s > 0.012
    cost = timed.speculator._costs.of(0.01, 0.0)
    assert abs(cost.drafting_s + 5 * cost.draft_s - 0.02) < 1e-3


def test_drafts_wait_for_steps_without_them() -> None:
    timed = Timed()
    for _ in range(PLAIN_STEPS):
        assert timed.clock.rates_for_drafts() == StepRates()
        timed.add(0.01)
    for _ in range(MAX_DRAFTED_STEPS):
        assert abs(timed.clock.rates_for_drafts().decode_step_s - 0.01) < 1e-4
        timed.add(0.02, num_drafted=5)
    assert timed.clock.rates_for_drafts() == StepRates()
    for _ in range(100):
        timed.add(0.05)
    assert abs(timed.clock.rates_for_drafts().decode_step_s - 0.05) < 1e-2


def test_the_time_between_steps_counts_if_it_is_hidden_otherwise() -> None:
    for looks_ahead, between_s, expected in ((False, 0.004, 0.002), (True, 0.004, 0.006), (True, 1.0, 0.002)):
        timed = Timed()
        for _ in range(20):
            timed.add(0.01)
        for _ in range(20):
            timed.add(0.012, num_drafted=1, between_s=between_s, looks_ahead=looks_ahead)
        cost = timed.speculator._costs.of(0.01, 0.0)
        assert abs(cost.drafting_s + cost.draft_s - expected) < 2e-4
