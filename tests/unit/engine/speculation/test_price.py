"""How many drafted tokens pay, and when a request that was wrong is tried again."""

import itertools
import random
from dataclasses import replace

import pytest

from baton.engine.speculation.acceptance import FIRST_INTERVAL, LAST_INTERVAL, Acceptance
from baton.engine.speculation.draft_costs import FEW_DRAFTS, FIRST_AGE, LAST_AGE, TRUSTED_STEPS, DraftCosts
from baton.engine.speculation.pass_times import FIRST_AGE as FIRST_PASS_AGE
from baton.engine.speculation.pass_times import LAST_AGE as LAST_PASS_AGE
from baton.engine.speculation.pass_times import TRUSTED_PASSES, PassTimes
from baton.engine.speculation.preparation_budget import MAX_STEPS, PreparationBudget
from baton.engine.speculation.preparation_budget import SHARE as PREPARATION_SHARE
from baton.engine.speculation.price import MARGIN, Candidate, StepCost, draft_lengths
from baton.engine.speculation.probe_budget import SHARE, ProbeBudget


def rate(
    candidates: list[Candidate], lengths: tuple[int, ...] | list[int], num_sequences: int, cost: StepCost
) -> float:
    """Expected tokens per second."""
    tokens = float(num_sequences)
    for each, length in zip(candidates, lengths, strict=True):
        tokens += sum(each.acceptance**count for count in range(1, length + 1))
    drafts = sum(lengths)
    passes_s = max(lengths, default=0) * cost.pass_s
    return tokens / (cost.plain_s + (cost.drafting_s if drafts else 0.0) + passes_s + drafts * cost.draft_s)


def test_no_other_lengths_are_faster() -> None:
    rng = random.Random(0)
    for _ in range(200):
        candidates = [Candidate(rng.randint(1, 4), rng.random()) for _ in range(rng.randint(1, 3))]
        num_sequences = len(candidates) + rng.randint(0, 3)
        draft_s, pass_s = rng.choice([0.0, 0.02, 0.1, 0.4]), rng.choice([0.0, 0.05, 0.3])
        cost = StepCost(1.0, rng.choice([0.0, 0.3]), draft_s, pass_s)
        lengths = draft_lengths(candidates, num_sequences, cost, most=100)
        every = itertools.product(*(range(each.num_tokens + 1) for each in candidates))
        best = max(rate(candidates, each, num_sequences, cost) for each in every)
        assert best <= rate(candidates, lengths, num_sequences, cost) * (1 if any(lengths) else MARGIN) + 1e-9


@pytest.mark.parametrize(
    ("acceptance", "num_sequences", "draft_s", "expected"),
    [
        (0.9, 1, 0.01, 5),  # nearly free
        (0.5, 1, 0.3, 1),
        (0.1, 1, 0.3, 0),  # rarely right
        (0.9, 1, 1.0, 0),  # as expensive as a step
        (0.5, 16, 0.05, 0),  # a full batch pays more for the same time
    ],
)
def test_the_price_of_time_decides(acceptance: float, num_sequences: int, draft_s: float, expected: int) -> None:
    [length] = draft_lengths([Candidate(5, acceptance)], num_sequences, StepCost(1.0, 0.0, draft_s), most=100)
    assert length == expected


def test_a_pass_is_paid_once_for_all_requests() -> None:
    """Its time is that of the weights, so drafting pays only with enough requests, and all drafts are as deep."""
    cost = StepCost(1.0, 0.0, 0.0, pass_s=0.6)
    assert draft_lengths([Candidate(5, 0.6)], 1, cost, most=100) == [0]
    assert draft_lengths([Candidate(5, 0.9)], 1, cost, most=100) == [2]
    assert draft_lengths([Candidate(5, 0.9), Candidate(5, 0.1)], 2, cost, most=100) == [0, 0]
    assert draft_lengths([Candidate(5, 0.7), Candidate(5, 0.7)], 2, replace(cost, pass_s=0.3), most=100) == [2, 2]


def test_the_acceptance_of_all_requests_is_that_with_which_others_begin() -> None:
    of_all = Acceptance.of_all()
    assert of_all.of_another().rate == Acceptance().rate
    for _ in range(200):
        of_all.note(num_drafted=4, num_accepted=0)
    assert of_all.rate < 0.05
    another = of_all.of_another()
    assert another.rate == pytest.approx(of_all.rate)
    another.note(num_drafted=4, num_accepted=4)
    another.note(num_drafted=4, num_accepted=4)
    assert another.rate > 0.6
    assert of_all.rate < 0.05


def test_preparations_take_a_share_of_the_time_and_what_drafts_save() -> None:
    budget, cost = PreparationBudget(), StepCost(1.0, 0.0, 0.0)
    budget.earn(StepCost(0.0, 0.0, 0.0))
    assert budget.left_s == 0
    budget.earn(cost)
    assert budget.left_s == MAX_STEPS
    budget.spend(2 * MAX_STEPS)
    assert budget.left_s == 0
    for _ in range(100):
        budget.earn(cost)
    assert budget.left_s == pytest.approx(100 * PREPARATION_SHARE)
    budget.add(3.0)
    assert budget.left_s == pytest.approx(3 + 100 * PREPARATION_SHARE)
    budget.add(-5.0)
    assert budget.left_s == 0
    budget.add(10 * MAX_STEPS)
    budget.earn(cost)
    assert budget.left_s == MAX_STEPS


def test_times_of_passes_are_those_of_about_as_many_requests() -> None:
    times = PassTimes()
    for _ in range(TRUSTED_PASSES - 1):
        times.add(1, 0.2)
    assert times.pass_s(1) == 0
    for elapsed_s in (0.2, 9.0, 0.2, 0.2):  # one was delayed
        times.add(1, elapsed_s)
    assert times.pass_s(1) == times.pass_s(64) == 0.2
    for _ in range(TRUSTED_PASSES):
        times.add(16, 0.5)
    assert [times.pass_s(count) for count in (1, 2, 17, 200)] == [0.2, 0.2, 0.5, 0.5]
    times.add_chunk(10, 1.0)
    assert times.prompt_token_s == 0.1
    times.add_chunk(10, 2.0)
    assert 0.1 < times.prompt_token_s < 0.2


def test_times_of_passes_are_measured_again_ever_more_rarely() -> None:
    times, intervals = PassTimes(), []
    for _ in range(6):
        for _ in range(TRUSTED_PASSES):
            times.add(1, 1.0)
        intervals.append(0)
        while times.pass_s(1):
            times.begin_step()
            intervals[-1] += 1
    assert intervals == [min((FIRST_PASS_AGE << n), LAST_PASS_AGE) + 1 for n in range(6)]


def test_a_fixed_cost_pays_only_if_all_drafts_together_do() -> None:
    cost = StepCost(1.0, 0.5, 0.01)
    assert draft_lengths([Candidate(5, 0.4)], 1, cost, most=100) != [0]
    assert draft_lengths([Candidate(5, 0.2)], 1, cost, most=100) == [0]
    assert draft_lengths([Candidate(5, 0.2)] * 4, 4, cost, most=100) == [0] * 4


def test_the_best_drafts_get_the_tokens_if_there_are_few() -> None:
    candidates = [Candidate(5, 0.5), Candidate(5, 0.9)]
    assert draft_lengths(candidates, 2, StepCost(1.0, 0.0, 0.0), most=3) == [0, 3]
    assert draft_lengths(candidates, 2, StepCost(1.0, 0.0, 0.0), most=0) == [0, 0]
    assert draft_lengths([], 2, StepCost(1.0, 0.0, 0.0), most=5) == []


def test_nothing_is_drafted_before_the_time_of_a_step_is_known() -> None:
    assert draft_lengths([Candidate(5, 0.9)], 1, StepCost(0.0, 0.0, 0.0), most=10) == [0]


def test_a_probe_has_its_token_at_any_price() -> None:
    candidates = [Candidate(5, 0.0, least=1), Candidate(5, 0.0)]
    assert draft_lengths(candidates, 2, StepCost(1.0, 1.0, 1.0), most=10) == [1, 0]
    assert draft_lengths(candidates * 3, 6, StepCost(1.0, 1.0, 1.0), most=2) == [1, 0, 1, 0, 0, 0]


def test_the_acceptance_follows_the_recent_drafts() -> None:
    acceptance = Acceptance()
    for _ in range(4):
        acceptance.note(num_drafted=5, num_accepted=0)
    assert acceptance.rate < 0.1
    for _ in range(4):
        acceptance.note(num_drafted=5, num_accepted=5)
    assert acceptance.rate > 0.8
    for _ in range(50):  # four of five tokens are right
        acceptance.note(num_drafted=9, num_accepted=4)
    assert acceptance.rate == pytest.approx(0.8, abs=0.001)


def test_probes_become_rarer_until_one_is_right() -> None:
    acceptance, intervals = Acceptance(), []
    acceptance.note(num_drafted=5, num_accepted=0)
    acceptance.note(num_drafted=5, num_accepted=0)
    for _ in range(7):
        while not acceptance.is_probe_due:
            acceptance.leave_out()
        intervals.append(acceptance.num_left_out)
        acceptance.note(num_drafted=1, num_accepted=0)
    assert intervals == [FIRST_INTERVAL << n for n in range(5)] + [LAST_INTERVAL] * 2
    while not acceptance.is_probe_due:
        acceptance.leave_out()
    acceptance.note(num_drafted=1, num_accepted=1)
    assert acceptance.rate > 0.5
    while not acceptance.is_probe_due:
        acceptance.leave_out()
    assert acceptance.num_left_out == FIRST_INTERVAL


def test_costs_of_drafts_are_fitted_to_the_steps() -> None:
    rng, costs = random.Random(1), DraftCosts()
    for _ in range(100):
        count = rng.randint(1, 6)
        costs.add(count, 0.01 * (1 + 0.3 + 0.05 * count) * rng.uniform(0.98, 1.02), plain_s=0.01)
    cost = costs.of(0.01, 0.0)
    assert cost.drafting_s == pytest.approx(0.003, rel=0.2)
    assert cost.draft_s == pytest.approx(0.0005, rel=0.3)


def test_costs_of_steps_that_are_all_alike_are_those_of_the_tokens() -> None:
    costs = DraftCosts()
    for _ in range(10):
        costs.add(4, step_s=0.014, plain_s=0.01)
    cost = costs.of(0.02, 0.0)  # of a larger batch
    assert cost.drafting_s == pytest.approx(0.0)
    assert cost.draft_s == pytest.approx(0.001)


def test_costs_are_never_negative() -> None:
    rng = random.Random(2)
    for _ in range(50):
        costs = DraftCosts()
        for _ in range(10):
            costs.add(rng.randint(1, 5), rng.uniform(0.005, 0.05), plain_s=0.01)
        cost = costs.of(0.01, 0.0)
        assert cost.drafting_s >= 0
        assert cost.draft_s >= 0


def test_the_first_steps_with_drafts_do_not_decide() -> None:
    costs = DraftCosts()
    for _ in range(TRUSTED_STEPS - 1):
        costs.add(5, step_s=1.0, plain_s=0.01)
    assert costs.of(0.01, sequence_s=0.001) == StepCost(0.01, 0.0, 0.001)
    assert costs.most_drafts <= FEW_DRAFTS
    costs.add(5, step_s=1.0, plain_s=0.01)
    assert costs.of(0.01, sequence_s=0.001).draft_s == pytest.approx(0.01)
    assert costs.most_drafts > 1000
    unknown = DraftCosts()
    unknown.add(5, step_s=1.0, plain_s=0.0)
    assert unknown == DraftCosts()


def test_costs_that_forbid_drafts_are_measured_again_ever_more_rarely() -> None:
    costs, intervals = DraftCosts(), []
    for _ in range(6):
        for _ in range(TRUSTED_STEPS):
            costs.add(5, step_s=0.05, plain_s=0.01)
        intervals.append(0)
        while costs.of(0.01, 0.0).draft_s > 0:
            costs.leave_out()
            intervals[-1] += 1
    assert intervals == [FIRST_AGE << n for n in range(5)] + [LAST_AGE]
    for _ in range(3 * TRUSTED_STEPS):
        costs.add(5, step_s=0.011, plain_s=0.01)
    for _ in range(FIRST_AGE):
        costs.leave_out()
    assert costs.most_drafts <= FEW_DRAFTS


def test_costs_that_were_measured_while_the_machine_was_busy_are_forgotten() -> None:
    costs = DraftCosts()
    for _ in range(100):
        costs.add(4, step_s=0.05, plain_s=0.01)
    for _ in range(FIRST_AGE):
        costs.leave_out()
    for _ in range(TRUSTED_STEPS):
        costs.add(costs.most_drafts, step_s=0.01 + 0.0002 * costs.most_drafts, plain_s=0.01)
    cost = costs.of(0.01, 0.0)
    assert cost.drafting_s + 4 * cost.draft_s < 0.0015


def test_probes_take_a_small_share_of_the_time() -> None:
    budget, cost, num_probes = ProbeBudget(), StepCost(1.0, 0.5, 0.25), 0
    for _ in range(10_000):
        budget.earn(cost)
        count = budget.affordable(2, cost)
        budget.spend(count, cost)
        num_probes += count
    assert 0.9 * SHARE < num_probes * 0.75 / 10_000 < 1.6 * SHARE  # the fixed part is shared by two
    assert ProbeBudget().affordable(2, cost) == 0
    rich = ProbeBudget()
    for _ in range(10_000):
        rich.earn(cost)
    assert rich.affordable(1000, cost) == 14  # of four steps
    assert rich.affordable(3, StepCost(1.0, 0.0, 0.0)) == 3
