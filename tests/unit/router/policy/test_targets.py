"""The cost of coming close to the latency targets."""

from dataclasses import replace
from itertools import pairwise

import pytest

from baton.router.policy.cluster import WorkerSnapshot
from baton.router.policy.cost_model import CostModel, Price
from baton.router.policy.estimates import RateBook, WorkerTimes
from baton.router.policy.policy import choose
from baton.router.policy.targets import LOST_SHARE, LOST_SLOPE, MOST_PROMPT_SHARE, POWER, SLOPE, STEEP_SHARE, Targets
from tests.unit.router.rigs.cluster_builder import both, cluster, prefill, request, worker

TARGETS = Targets(ttft_s=1.0, tpot_s=0.02)
ASKED = replace(request(1000), mean_output_tokens=100.0)


def times(snapshot: WorkerSnapshot) -> WorkerTimes:
    return CostModel().times(ASKED, snapshot, RateBook(cluster(snapshot)))


def cost(share: float) -> float:
    lost = max(0.0, share - LOST_SHARE)
    return SLOPE * share + (share - lost) ** POWER + LOST_SLOPE * lost


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


def test_one_more_sequence_costs_its_own_and_all_others_tokens() -> None:
    assert TARGETS.joining_s(ASKED, times(worker("d"))) == pytest.approx(cost(0.5))
    expected = 12 * cost(0.555) - 11 * cost(0.55)
    assert TARGETS.joining_s(ASKED, times(worker("d", requests=11))) == pytest.approx(expected)


def test_sequences_at_a_colocated_worker_decode_among_all_prompts() -> None:
    """They keep other workers' prompts away, so its own prompts alone would make it look free."""
    least = TARGETS.joining_s(ASKED, times(both("b", requests=11)), 0.5)
    assert least == pytest.approx(TARGETS.joining_s(ASKED, times(replace(both("b", requests=11), prompt_share=0.5))))
    assert TARGETS.joining_s(ASKED, times(replace(both("b", requests=11), prompt_share=0.6)), 0.5) > least
    most = TARGETS.joining_s(ASKED, times(both("b", requests=11)), 2.0)
    assert most == pytest.approx(TARGETS.joining_s(ASKED, times(replace(both("b", requests=11), prompt_share=2.0))))


def test_a_short_request_slows_others_for_a_short_time() -> None:
    short = replace(ASKED, num_final_tokens=1010)
    expected = cost(0.555) + 11 * 0.1 * (cost(0.555) - cost(0.55))
    assert TARGETS.joining_s(short, times(worker("d", requests=11))) == pytest.approx(expected)
    # A bound beyond the usual length says nothing.
    assert replace(ASKED, num_final_tokens=8000).expected_output_tokens == 100.0
    assert replace(ASKED, num_final_tokens=1000).expected_output_tokens == 100.0  # as if it were not known


def test_a_prompt_delays_running_and_arriving_requests() -> None:
    delay = 0.2 / (100 * 0.02)
    alone = SLOPE * delay  # of the next prompt
    assert TARGETS.disturbing_s(ASKED, times(both("b")), 0.2, 0) == pytest.approx(alone)
    assert TARGETS.disturbing_s(ASKED, times(prefill("p", requests=11)), 0.2, 0) == pytest.approx(alone)
    there, comes = cost(0.55 + delay) - cost(0.55), cost(0.55 + delay / 2) - cost(0.55)
    num_coming = 11 * 0.2 / (100 * 0.011)  # each stays for 100 steps
    for decoding in (worker("d", requests=11), both("b", requests=11)):
        assert TARGETS.disturbing_s(ASKED, times(decoding), 0.2, 0) == pytest.approx(
            11 * there + num_coming * comes + alone
        )
    assert TARGETS.pause_s(ASKED, 0.2) == pytest.approx(alone)


def test_a_pause_delays_a_short_response_most() -> None:
    short = replace(ASKED, num_final_tokens=1008)
    assert TARGETS.pause_s(short, 0.2) == pytest.approx(100 / 8 * TARGETS.pause_s(ASKED, 0.2))


def test_short_answers_are_lost_to_a_prompt_that_long_ones_do_not_feel() -> None:
    """The mean output has 100 tokens either way, and a prompt of 0.135 s hardly delays it."""
    alike = TARGETS.disturbing_s(ASKED, times(worker("d", requests=3)), 0.135, 0)
    mixed = replace(ASKED, typical_output_tokens=(8.0, 8.0, 192.0, 192.0))
    assert TARGETS.disturbing_s(mixed, times(worker("d", requests=3)), 0.135, 0) > 2 * alike
    same = replace(ASKED, typical_output_tokens=(100.0, 100.0))
    assert TARGETS.disturbing_s(same, times(worker("d", requests=3)), 0.135, 0) == pytest.approx(alike)


def test_a_long_prompt_waits_where_it_would_be_computed_among_short_answers() -> None:
    """Behind two prompts at the worker of both roles it is late by little; at the decode worker short answers that come
    meanwhile would be lost.
    """
    workers = cluster(
        replace(both("b", requests=2, queued=2800), num_prefills=2, prompt_share=0.9), worker("d", requests=3)
    )
    model = CostModel(targets=Targets(ttft_s=0.7, tpot_s=0.02))
    long_prompt = replace(request(1500), mean_output_tokens=100.0)
    all_alike = choose(replace(long_prompt, typical_output_tokens=(100.0,)), workers, model)
    assert all_alike.prefill is None
    mixed = choose(replace(long_prompt, typical_output_tokens=(8.0, 8.0, 192.0, 192.0)), workers, model)
    assert mixed.prefill is not None
    assert mixed.prefill.worker_id == "b"
    # A queue that makes its own first token late counts for more.
    queue = cluster(replace(both("b", requests=6, queued=9000), num_prefills=6), worker("d", requests=3))
    assert choose(replace(long_prompt, typical_output_tokens=(8.0, 8.0, 192.0, 192.0)), queue, model).prefill is None


def test_prompts_for_others_do_not_decode_where_they_are_computed() -> None:
    decoding, computing = both("b", requests=3), replace(both("b", requests=9), num_prefills=6)
    assert TARGETS.token_share(times(computing), 1) == TARGETS.token_share(times(decoding), 1)
    assert TARGETS.joining_s(ASKED, times(computing)) == TARGETS.joining_s(ASKED, times(decoding))
    assert TARGETS.disturbing_s(ASKED, times(computing), 0.2, 0) == TARGETS.disturbing_s(ASKED, times(decoding), 0.2, 0)


def test_requests_that_wait_for_prefill_workers_do_not_decode_yet() -> None:
    waiting, decoding = times(replace(worker("d", requests=11), num_receiving=8)), times(worker("d", requests=3))
    assert TARGETS.token_share(waiting, 1) == TARGETS.token_share(decoding, 1)
    assert TARGETS.joining_s(ASKED, waiting) == TARGETS.joining_s(ASKED, decoding)
    assert TARGETS.disturbing_s(ASKED, waiting, 0.2, 0) == TARGETS.disturbing_s(ASKED, decoding, 0.2, 0)
    assert TARGETS.is_tight(ASKED, times(worker("d", requests=86, max_num_seqs=200)))
    assert not TARGETS.is_tight(ASKED, times(replace(worker("d", requests=86, max_num_seqs=200), num_receiving=8)))


def test_waiting_prompts_do_not_hide_running_sequences() -> None:
    """70 of 90 requests are prompts for other workers: 20 decode, although only 64 of the 90 have a place."""
    crowded, decoding = replace(both("b", requests=90), num_prefills=70), both("b", requests=20)
    assert TARGETS.token_share(times(crowded), 0) == TARGETS.token_share(times(decoding), 0)
    assert TARGETS.joining_s(ASKED, times(crowded)) == TARGETS.joining_s(ASKED, times(decoding))
    full = replace(both("b", requests=90), num_prefills=10)  # 80 would decode, but have no place
    assert TARGETS.token_share(times(full), 0) == TARGETS.token_share(times(both("b", requests=64)), 0)


def test_the_busiest_worker_never_becomes_the_cheapest() -> None:
    for typical in ((100.0,), (8.0, 8.0, 192.0, 192.0)):
        for work_s in (0.02, 0.2, 2.0):
            asked = replace(ASKED, typical_output_tokens=typical)
            costs = [
                TARGETS.disturbing_s(
                    asked, times(replace(worker("d", requests=30), prompt_share=share / 100)), work_s, 1
                )
                for share in range(0, 100, 5)
            ]
            assert all(after > before - 1e-9 for before, after in pairwise(costs))


def test_prompts_for_others_cost_less_among_lost_responses() -> None:
    """No sequence follows such a prompt, and the responses there are too slow with it or without."""
    near, lost = times(worker("d", requests=91)), times(replace(worker("d", requests=91), prompt_share=0.5))
    assert TARGETS.token_share(near, 0) < 1 < LOST_SHARE < TARGETS.token_share(lost, 0)
    assert TARGETS.disturbing_s(ASKED, lost, 0.1, 0) < TARGETS.disturbing_s(ASKED, near, 0.1, 0) / 2
    assert TARGETS.disturbing_s(ASKED, lost, 0.1, 1) > TARGETS.disturbing_s(ASKED, near, 0.1, 1)


def test_the_cost_of_late_tokens_is_bounded() -> None:
    """The cost of a disturbance is bounded, except for the added seconds."""
    slow = times(replace(worker("d", requests=30, step_s=0.03), prompt_share=0.5))
    once, twice = (TARGETS.disturbing_s(ASKED, slow, work_s, 0) for work_s in (20.0, 21.0))
    assert once > 0
    assert twice / once < 21 / 20 * 1.06


def test_a_worker_is_tight_if_decoding_alone_takes_the_target() -> None:
    assert not TARGETS.is_tight(ASKED, times(worker("d", requests=81, max_num_seqs=200)))
    assert TARGETS.is_tight(ASKED, times(worker("d", requests=86, max_num_seqs=200)))
    assert not TARGETS.is_tight(
        ASKED, times(replace(worker("d", requests=11), prompt_share=0.8))
    )  # these can go elsewhere
    assert TARGETS.is_tight(
        ASKED, times(replace(both("b", requests=11), prompt_share=0.8))
    )  # these are other workers' too


def test_short_responses_need_room_for_the_step_after_their_handover() -> None:
    short = replace(ASKED, typical_output_tokens=(4.0, 100.0, 296.0))
    assert TARGETS.is_tight(short, times(worker("d", requests=60, max_num_seqs=200)))
    assert not TARGETS.is_tight(ASKED, times(worker("d", requests=60, max_num_seqs=200)))
    assert not TARGETS.is_tight(short, times(both("b", requests=60, max_num_seqs=200)))  # nothing is handed over to it


def test_an_early_first_token_is_worth_no_more_than_other_early_tokens() -> None:
    """Within the targets, a short prompt does not bypass a queue at the cost of short outputs."""
    price = Price(ttft_s=1.0, harm_s=0.0, evicted_s=0.0, unfair_s=0.0)
    assert CostModel().cost(price) == 1.0
    assert CostModel(targets=TARGETS).cost(price) == SLOPE
    workers = cluster(
        replace(both("b", requests=1, queued=1500), num_prefills=1, prompt_share=0.9), worker("d", requests=8)
    )
    promised = Targets(ttft_s=0.7, tpot_s=0.0135)
    short_prompt = replace(request(300), mean_output_tokens=100.0, typical_output_tokens=(8.0, 8.0, 192.0, 192.0))
    assert choose(short_prompt, workers, CostModel()).prefill is None
    assert choose(short_prompt, workers, CostModel(targets=promised)).prefill is not None
