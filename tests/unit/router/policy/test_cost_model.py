"""Prices of plans on hand-made snapshots, in numbers."""

from dataclasses import replace

import pytest

from baton.router.policy.cluster import (
    FAIRNESS_SLACK,
    WINDOW,
    ClusterSnapshot,
    RecentRequests,
    RoutedRequest,
    WorkerSnapshot,
    excess,
    fair_count,
)
from baton.router.policy.cost_model import CostModel, DecodeOption, PrefillOption, Price
from baton.router.policy.estimates import (
    DEFAULT_DECODE_STEP_S,
    DEFAULT_PREFILL_TOKENS_PER_S,
    DEFAULT_READ_BYTES_PER_S,
    RateBook,
    ReuseShare,
)
from tests.unit.router.rigs.cluster_builder import both, cluster, prefill, request, worker

MODEL = CostModel()


def decode_option(asked: RoutedRequest, decode: WorkerSnapshot, book: RateBook) -> DecodeOption:
    return MODEL.decode_option(asked, MODEL.times(asked, decode, book), book)


def local(asked: RoutedRequest, decode: WorkerSnapshot) -> Price:
    return MODEL.local(asked, decode_option(asked, decode, RateBook(cluster(decode))))


def option(asked: RoutedRequest, worker: WorkerSnapshot, source: WorkerSnapshot | None = None) -> PrefillOption:
    return MODEL.option(asked, MODEL.times(asked, worker, RateBook(cluster(worker))), source)


def remote(asked: RoutedRequest, decode: WorkerSnapshot, chosen: PrefillOption) -> Price:
    return MODEL.remote(asked, decode_option(asked, decode, RateBook(cluster(decode))), chosen)


def test_an_idle_worker_takes_the_prompt_and_a_step() -> None:
    price = local(request(1000), worker("d"))
    assert price.ttft_s == pytest.approx(0.1 + 0.01)
    assert price.harm_s == pytest.approx(0.1)  # to one who comes next
    assert price.evicted_s == pytest.approx(0.5 * 0.1)


def test_cached_tokens_are_not_computed_except_the_last() -> None:
    assert local(request(1000, d=900), worker("d")).ttft_s == pytest.approx(0.01 + 0.01)
    assert local(request(1000, d=1000), worker("d")).ttft_s == pytest.approx(0.0001 + 0.01)


def test_queued_tokens_come_first() -> None:
    step_s = 0.01 + 2 * 0.0001
    price = local(request(1000), worker("d", requests=3, queued=4096))
    assert price.ttft_s == pytest.approx(0.4096 + 2 * step_s + 0.1 + step_s)


def test_a_prompt_of_several_steps_pays_each() -> None:
    assert local(request(5000), worker("d")).ttft_s == pytest.approx(0.5 + 3 * 0.01)


def test_running_sequences_wait_for_the_prompt_and_slow_each_other() -> None:
    price = local(request(1000), worker("d", requests=10))
    joining_s = 2 * 10 * MODEL.num_output_tokens * 0.0001
    assert price.harm_s == pytest.approx(11 * 0.1 + joining_s)


def test_a_full_batch_is_waited_for() -> None:
    room = local(request(10), worker("d", requests=7, max_num_seqs=8)).ttft_s
    full = local(request(10), worker("d", requests=9, max_num_seqs=8)).ttft_s
    step_s = 0.01 + 7 * 0.0001
    ends = 2  # of the eight that run, so that the one waiting and then this one find a place
    assert full - room == pytest.approx(ends * MODEL.num_output_tokens * step_s / 8, rel=0.05)


def test_blocks_are_waited_for() -> None:
    step_s = 0.01 + 9 * 0.0001
    price = local(request(320), worker("d", requests=10, free=0))  # 20 blocks and 10 to spare; each sequence holds 100
    unhindered = local(request(320), worker("d", requests=10, free=500))
    assert price.ttft_s - unhindered.ttft_s == pytest.approx(0.3 * MODEL.num_output_tokens * step_s / 10)
    behind = local(request(320), replace(worker("d", requests=10, free=0), num_awaited_blocks=100))
    assert behind.ttft_s - price.ttft_s == pytest.approx(MODEL.num_output_tokens * step_s / 10)
    longer = local(replace(request(320), mean_output_tokens=512.0), worker("d", requests=10, free=0))
    assert longer.ttft_s - unhindered.ttft_s == pytest.approx(0.3 * 512 * step_s / 10)


def test_only_what_the_computation_does_not_hide_of_a_transfer_is_harm() -> None:
    slow = worker("d", read_bytes_per_s=(1 << 20) * 1000)  # a block a millisecond
    short = remote(request(1600), slow, option(request(1600), prefill("p")))
    assert short.ttft_s == pytest.approx(MODEL.hop_s + 0.16 + 0.01)
    assert short.harm_s == pytest.approx(0.1 + 0.17)  # a hundred blocks after the only step, and who comes next
    long = remote(request(4096), slow, option(request(4096), prefill("p")))
    assert long.harm_s == pytest.approx(0.128 + 0.4096 + 0.02)  # the last step's blocks; the others came beside it
    cached = remote(request(1600, d=1600), slow, option(request(1600), prefill("p")))
    assert cached.harm_s == pytest.approx(0.001 + 0.17)


def test_a_pull_overlaps_with_the_queue_and_saves_computation() -> None:
    asked, source = request(5000, s=4800), worker("s")
    slow = prefill("p", read_bytes_per_s=(1 << 20) * 1000)
    pulled = option(asked, slow, source)
    assert pulled.num_computed_tokens == 200
    assert pulled.wait_s == pytest.approx(MODEL.hop_s + 0.3)
    assert pulled.compute_s == pytest.approx(0.02 + 0.01)
    assert option(asked, replace(slow, num_requests=1, num_queued_tokens=9000), source).wait_s > 0.9


def test_missing_rates_follow_the_role_and_then_all_workers() -> None:
    silent = worker("d0", rate=0, step_s=0, sequence_s=0, read_bytes_per_s=0)
    fast, slow, slower = (worker(f"d{rate}", rate=rate) for rate in (4000, 2000, 1000))
    assert RateBook(cluster(silent, fast, slow, slower)).of(silent).prefill_tokens_per_s == 2000
    rates = RateBook(cluster(silent, prefill("p", rate=7000))).of(silent)
    assert (rates.prefill_tokens_per_s, rates.decode_step_s) == (7000, 0.010)
    rates = RateBook(cluster(silent)).of(silent)
    assert rates.prefill_tokens_per_s == DEFAULT_PREFILL_TOKENS_PER_S
    assert (rates.decode_step_s, rates.read_bytes_per_s) == (DEFAULT_DECODE_STEP_S, DEFAULT_READ_BYTES_PER_S)


def test_a_sequence_without_cost_is_not_an_unknown_rate() -> None:
    known = worker("d0", sequence_s=0.0, read_bytes_per_s=0)
    assert RateBook(cluster(known, worker("d1"))).of(known).decode_sequence_s == 0


def test_a_worker_with_excess_requests_pays_the_worth_of_its_cache() -> None:
    turn = 10_000
    fair = fair_count(turn, 2)
    much = RecentRequests(fair + (fair + FAIRNESS_SLACK), turn)  # twice the share, the slack apart
    book = RateBook(ClusterSnapshot((worker("d1", recent=much), worker("d2")), turn))
    asked = request(1000)
    favoured, other = (decode_option(asked, each, book) for each in (worker("d1", recent=much), worker("d2")))
    assert favoured.unfair_s == pytest.approx(0.5 * 0.1, rel=0.01)
    assert other.unfair_s == 0


def test_requests_leave_the_window() -> None:
    count = RecentRequests()
    for turn in range(1, 20 * WINDOW):
        if turn % 4 == 0:
            count = count.with_one(turn)
    turn = 20 * WINDOW
    assert count.at(turn) == pytest.approx(WINDOW / 4, rel=0.01)
    assert fair_count(turn, 4) == pytest.approx(WINDOW / 4, rel=0.01)
    assert excess(count, turn, fair_count(turn, 4)) == pytest.approx(0, abs=0.01)
    assert count.at(turn + 10 * WINDOW) < 0.01


def test_the_first_requests_have_no_fairness_penalty() -> None:
    assert excess(RecentRequests().with_one(1), 1, fair_count(1, 8)) < 1 / FAIRNESS_SLACK


def test_the_share_of_reuse_follows_the_prompts() -> None:
    reuse = ReuseShare()
    assert reuse.value == 0.5
    for _ in range(1000):
        reuse.note(1000, 900)
    assert reuse.value == pytest.approx(0.9, abs=0.01)
    for _ in range(1000):
        reuse.note(1000, 0)
    assert reuse.value < 0.01


def all_prompts_share(*workers: WorkerSnapshot, fingerprint: str = "f") -> float:
    return RateBook(cluster(*workers)).all_prompts_share(fingerprint, 0.2)


def test_all_prompts_are_shared_by_the_workers_that_prefill_for_others() -> None:
    decode, shared = replace(worker("d", free=500), prompt_share=0.3), replace(both("b"), prompt_share=0.2)
    full = replace(worker("e", free=100), prompt_share=0.1)
    other = replace(prefill("p"), prompt_share=0.4)
    assert all_prompts_share(decode, shared) == pytest.approx(0.5)
    assert all_prompts_share(decode, full, shared, other) == pytest.approx(0.5)  # two workers would compute them
    assert all_prompts_share(full, shared) == 0  # no decode worker has memory for more sequences
    assert all_prompts_share(shared, other) == 0
    assert all_prompts_share(decode) == 0
    assert all_prompts_share(replace(decode, prompt_share=40.0), shared) == pytest.approx(1.2)  # all of its time


def test_a_slow_worker_s_prompts_take_less_time_at_a_fast_one() -> None:
    slow, fast = replace(worker("d", rate=1000.0), prompt_share=0.5), replace(both("b"), prompt_share=0.2)
    assert all_prompts_share(slow, fast) == pytest.approx(0.2 + 0.05)
    assert all_prompts_share(slow, fast, prefill("p", rate=2500.0)) == pytest.approx(0.2)
    silent = both("s", rate=0.0)  # assumed to be as fast as the other
    assert all_prompts_share(slow, fast, silent) == pytest.approx(0.125)


def test_prompts_are_shared_among_workers_with_equal_kv() -> None:
    """Workers of another version cannot compute them, nor take their sequences."""
    decode, shared = replace(worker("d"), prompt_share=0.3), replace(both("b"), prompt_share=0.2)
    others = (
        replace(worker("d2", free=100, fingerprint="g"), prompt_share=0.8),
        replace(both("b2", fingerprint="g"), prompt_share=0.1),
    )
    assert all_prompts_share(decode, shared, *others) == pytest.approx(0.5)
    assert all_prompts_share(decode, shared, *others, fingerprint="g") == 0
    book = RateBook(cluster(decode, shared, *others))
    assert [book.all_prompts_share(fingerprint, 0.2) for fingerprint in "gf"] == [0, pytest.approx(0.5)]
