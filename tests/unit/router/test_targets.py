"""What it costs to come near the times that are promised."""

from dataclasses import replace
from itertools import pairwise

import pytest

from router.cluster import WorkerSnapshot
from router.cost_model import CostModel
from router.rates import RateBook
from router.targets import MOST_PROMPT_SHARE, POWER, SLOPE, STEEP_SHARE, Targets
from router.worker_times import WorkerTimes
from tests.unit.router.cluster_builder import both, cluster, prefill, request, worker

TARGETS = Targets(ttft_s=1.0, tpot_s=0.02)
ASKED = replace(request(1000), mean_output_tokens=100.0)


def times(snapshot: WorkerSnapshot) -> WorkerTimes:
    return CostModel().times(ASKED, snapshot, RateBook(cluster(snapshot)))


def cost(share: float) -> float:
    return SLOPE * share + share**POWER


def test_a_first_token_costs_little_until_it_is_nearly_late() -> None:
    assert TARGETS.late_s(0.5) == pytest.approx(1 / 16)
    assert TARGETS.late_s(1.0) == pytest.approx(1.0)
    assert TARGETS.late_s(STEEP_SHARE) == pytest.approx(STEEP_SHARE**POWER)
    for late_s in (4.0, 50.0, 1000.0):  # no queue is so long that more of it would cost nothing
        slope = TARGETS.late_s(late_s + 1.0) - TARGETS.late_s(late_s)
        assert slope == pytest.approx(POWER * STEEP_SHARE ** (POWER - 1))
    assert Targets(ttft_s=2.0, tpot_s=0.02).late_s(2.0) == pytest.approx(2.0)


def test_a_token_takes_a_step_in_what_prompts_leave() -> None:
    idle, busy = worker("d"), worker("d", requests=11)  # 10 ms, and 0.1 ms for each further sequence
    assert TARGETS.token_share(times(idle), 1) == TARGETS.token_share(times(idle), 0) == pytest.approx(0.5)
    assert TARGETS.token_share(times(busy), 0) == pytest.approx(0.55)
    assert TARGETS.token_share(times(busy), 1) == pytest.approx(0.555)
    assert TARGETS.token_share(times(replace(busy, prompt_share=0.5)), 0) == pytest.approx(1.1)
    assert TARGETS.token_share(times(replace(busy, prompt_share=2.0)), 0) == pytest.approx(
        0.55 / (1 - MOST_PROMPT_SHARE)
    )
    assert TARGETS.token_share(times(replace(idle, prompt_share=0.5)), 1) == pytest.approx(0.5)  # that is over


def test_who_joins_pays_for_itself_and_for_all_others() -> None:
    assert TARGETS.joining_s(times(worker("d"))) == pytest.approx(cost(0.5))
    expected = 12 * cost(0.555) - 11 * cost(0.55)
    assert TARGETS.joining_s(times(worker("d", requests=11))) == pytest.approx(expected)


def test_a_prompt_disturbs_who_decodes_there_and_who_comes() -> None:
    delay = 0.2 / (100 * 0.02)
    alone = SLOPE * delay
    assert TARGETS.disturbing_s(ASKED, times(worker("d")), 0.2, 0) == pytest.approx(alone)
    assert TARGETS.disturbing_s(ASKED, times(prefill("p", requests=11)), 0.2, 0) == pytest.approx(alone)
    expected = 11 * (cost(0.55 + delay) - cost(0.55)) + alone
    for decoding in (worker("d", requests=11), both("b", requests=11)):
        assert TARGETS.disturbing_s(ASKED, times(decoding), 0.2, 0) == pytest.approx(expected)
    assert TARGETS.pause_s(ASKED, 0.2) == pytest.approx(alone)


def test_prompts_for_others_do_not_decode_where_they_are_computed() -> None:
    decoding, computing = both("b", requests=3), replace(both("b", requests=9), num_prefills=6)
    assert TARGETS.token_share(times(computing), 1) == TARGETS.token_share(times(decoding), 1)
    assert TARGETS.joining_s(times(computing)) == TARGETS.joining_s(times(decoding))
    assert TARGETS.disturbing_s(ASKED, times(computing), 0.2, 0) == TARGETS.disturbing_s(ASKED, times(decoding), 0.2, 0)


def test_the_busiest_worker_never_becomes_the_cheapest() -> None:
    costs = [
        TARGETS.disturbing_s(ASKED, times(replace(worker("d", requests=30), prompt_share=share / 100)), 0.2, 0)
        for share in range(0, 100, 5)
    ]
    assert all(after > before - 1e-9 for before, after in pairwise(costs))


def test_a_worker_is_tight_when_decoding_alone_takes_what_is_promised() -> None:
    assert not TARGETS.is_tight(times(worker("d", requests=69, max_num_seqs=200)))
    assert TARGETS.is_tight(times(worker("d", requests=71, max_num_seqs=200)))
    assert not TARGETS.is_tight(times(replace(worker("d", requests=11), prompt_share=0.8)))  # these can go elsewhere
