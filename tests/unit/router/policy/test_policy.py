"""Which workers are chosen, and the reason for each choice."""

from collections import Counter
from dataclasses import replace

import pytest

from baton.router.errors import NoWorker
from baton.router.policy.cluster import ImpossiblePlan, PlanKind, RoutedRequest, WorkerSnapshot
from baton.router.policy.named_policies import LeastLoadedPolicy, RoundRobinPolicy, make_policy
from baton.router.policy.policy import MAX_DECODERS, CostPolicy, chance
from baton.router.policy.targets import Targets
from baton.router.request_context import RoutingHints
from tests.unit.router.rigs.cluster_builder import both, cluster, names, prefill, request, worker

COST = CostPolicy()


def test_a_long_prompt_goes_through_a_prefill_worker_while_others_decode() -> None:
    plan = COST(request(2000), cluster(worker("d", requests=20), prefill("p")))
    assert names(plan) == ("d", "p", None)
    assert plan.kind is PlanKind.REMOTE
    assert str(plan.reason) == (
        "remote at d through p: 0.2140 s to the first token, 1.2471 s of harm, 0.2000 s of cache lost, 0.0000 s for "
        "fairness; instead of local at d: 0.2179 s to the first token, 5.2240 s of harm, 0.1000 s of cache lost, "
        "0.0000 s for fairness"
    )


def test_a_short_or_well_cached_prompt_is_prefilled_where_it_is_decoded() -> None:
    workers = (worker("d", requests=20), prefill("p", requests=1))
    assert names(COST(request(20), cluster(*workers))) == ("d", None, None)
    plan = COST(request(5000, d=4950), cluster(*workers))
    assert names(plan) == ("d", None, None)
    assert str(plan.reason).startswith("local at d: ")
    assert "; instead of remote at d through p with the prefix of d: " in str(plan.reason)


def test_an_idle_decode_worker_computes_prompts_that_would_wait_elsewhere() -> None:
    plan = COST(request(2000), cluster(worker("d"), prefill("p", requests=5, queued=20_000)))
    assert names(plan) == ("d", None, None)


def test_without_prefill_workers_and_at_colocated_ones_it_is_local() -> None:
    assert names(COST(request(5000), cluster(worker("d", requests=20)))) == ("d", None, None)
    assert names(COST(request(5000), cluster(both("b", requests=20), prefill("p")))) == ("b", None, None)


def test_colocated_workers_prefill_for_decode_workers() -> None:
    decode = worker("d", requests=20)
    assert names(COST(request(2000), cluster(decode, both("b")))) == ("d", "b", None)
    assert names(COST(request(2000), cluster(decode, both("b"), prefill("p", requests=5, queued=20_000))))[1] == "b"
    assert names(COST(request(2000), cluster(decode, both("b", fingerprint="g"))))[1] is None
    assert names(COST(request(2000), cluster(both("b1"), both("b2", requests=9))))[1] is None  # nobody else decodes


def busy_with_prompts(name: str) -> WorkerSnapshot:
    """A colocated worker whose prompts leave too little of its time for decoding."""
    return replace(both(name, requests=1, queued=300), prompt_share=0.6)


def test_colocated_workers_decode_if_decode_workers_are_full() -> None:
    promised = make_policy("cost", None, Targets(ttft_s=1.0, tpot_s=0.02))
    roomy = worker("d", requests=60, max_num_seqs=99)  # 16 ms of the 20
    assert names(promised(request(2000), cluster(roomy, busy_with_prompts("b")))) == ("d", "b", None)
    full = worker("d", requests=86, max_num_seqs=99)  # 18.6 ms of the 20
    assert names(promised(request(2000), cluster(full, both("b")))) == ("b", None, None)
    assert names(promised(request(2000), cluster(full, worker("e", requests=3), busy_with_prompts("b"))))[0] == "e"
    assert names(COST(request(2000), cluster(full, both("b"))))[0] == "d"  # nothing is promised
    assert names(COST(request(2000), cluster(worker("d", requests=99, max_num_seqs=99), both("b"))))[0] == "b"


def test_colocated_workers_decode_while_their_prompts_leave_room() -> None:
    """Short outputs have less room: a prompt in between is most of their time."""
    promised = make_policy("cost", None, Targets(ttft_s=1.0, tpot_s=0.02))
    decode, idle = worker("d", requests=60, max_num_seqs=99), both("b", requests=1)
    shared = replace(idle, prompt_share=0.3)
    short = replace(request(2000), mean_output_tokens=100.0, typical_output_tokens=(8.0, 20.0, 100.0, 272.0))
    assert names(promised(request(2000), cluster(decode, idle)))[0] == "b"
    assert names(promised(request(2000), cluster(decode, shared)))[0] == "b"
    assert names(promised(short, cluster(decode, idle)))[0] == "b"
    assert names(promised(short, cluster(decode, shared))) == ("d", "b", None)
    assert names(promised(short, cluster(decode, replace(shared, num_requests=0)))) == ("d", "b", None)  # for a moment
    assert names(COST(request(2000), cluster(decode, idle))) == ("d", "b", None)  # nothing is promised


def test_colocated_workers_leave_sequences_to_decode_workers_that_compute_their_prompts() -> None:
    """The colocated worker has fewer sequences. Without them it would compute the prompts of both workers."""
    promised = make_policy("cost", None, Targets(ttft_s=1.0, tpot_s=0.02))
    decode, shared = (
        replace(worker("d", requests=4), prompt_share=0.3),
        replace(both("b", requests=1), prompt_share=0.3),
    )
    assert names(promised(request(2000), cluster(decode, shared))) == ("d", "b", None)
    assert names(promised(request(2000), cluster(replace(decode, prompt_share=0.0), both("b", requests=1))))[0] == "b"
    free = replace(shared, num_requests=0)  # no sequence keeps prompts away from it
    assert names(promised(request(2000), cluster(decode, free)))[0] == "b"


def test_colocated_workers_decode_if_the_kv_of_decode_workers_is_nearly_full() -> None:
    nearly, fresh = worker("d", requests=20, free=90), replace(request(100), reuse_share=0.0)
    assert names(COST(fresh, cluster(nearly, both("b", requests=3, queued=4000))))[0] == "b"
    assert names(COST(fresh, cluster(replace(nearly, num_free_blocks=110), both("b"))))[0] == "d"
    neither = both("b", requests=30, queued=9000, free=90)
    assert names(COST(fresh, cluster(nearly, neither)))[0] == "d"  # by price


def test_prompts_that_are_used_again_are_not_crowded_out_of_decode_workers() -> None:
    half, empty = worker("d", requests=20, free=450), both("b", requests=3, queued=4000)
    assert names(COST(replace(request(100), reuse_share=0.5), cluster(half, empty)))[0] == "b"
    assert names(COST(replace(request(100), reuse_share=0.3), cluster(half, empty)))[0] == "d"
    assert (
        names(COST(replace(request(100), reuse_share=1.0), cluster(replace(half, num_free_blocks=560), empty)))[0]
        == "d"
    )


def test_a_decode_worker_with_room_is_found_among_many() -> None:
    promised = make_policy("cost", None, Targets(ttft_s=1.0, tpot_s=0.02))
    near = [worker(f"d{number}", requests=86, max_num_seqs=99) for number in range(MAX_DECODERS)]
    far = [worker(f"e{number}", requests=2, queued=500) for number in range(3)]
    cached = {f"d{number}": 900 for number in range(MAX_DECODERS)}
    assert names(promised(request(1000, **cached), cluster(*near, *far, both("b"))))[0].startswith("e")
    assert names(promised(request(1000, **cached), cluster(*near, both("b"))))[0] == "b"


def test_even_hopeless_prompts_avoid_the_longest_prefill_queue() -> None:
    promised = make_policy("cost", None, Targets(ttft_s=0.5, tpot_s=0.02))
    for queued in (5_000, 50_000, 500_000):
        snapshot = cluster(worker("d", requests=30), prefill("p", requests=9, queued=queued))
        assert names(promised(request(2000), snapshot))[1] is None
    two = cluster(worker("d", requests=30), prefill("p", requests=9, queued=60_000), busy_with_prompts("b"))
    assert names(promised(request(2000), two))[1] == "b"


def test_targets_decide_which_worker_computes_a_prompt() -> None:
    """The same cluster: 30 sequences decode, and the prefill worker has a second's queue."""
    workers = cluster(worker("d", requests=30), prefill("p", requests=5, queued=10_000))
    tokens_first = make_policy("cost", None, Targets(ttft_s=5.0, tpot_s=0.015))
    prompts_first = make_policy("cost", None, Targets(ttft_s=0.5, tpot_s=0.2))
    assert names(tokens_first(request(2000), workers))[1] == "p"
    assert names(prompts_first(request(2000), workers))[1] is None


def test_only_equal_fingerprints_are_paired() -> None:
    busy = worker("d", requests=50)
    assert names(COST(request(5000), cluster(busy, prefill("p", fingerprint="g")))) == ("d", None, None)
    plan = COST(request(5000, q=4992), cluster(busy, prefill("p"), prefill("q", fingerprint="g")))
    assert names(plan) == ("d", "p", None)
    old, new = worker("d1", requests=50), worker("d2", requests=50, fingerprint="g")
    for turn in range(20):
        plan = COST(request(5000), cluster(old, new, prefill("p1"), prefill("p2", fingerprint="g"), turn=turn))
        assert names(plan) in (("d1", "p1", None), ("d2", "p2", None))


def test_the_longest_prefix_wins_among_equally_loaded_workers() -> None:
    assert COST(request(500, d2=256), cluster(worker("d1"), worker("d2"), worker("d3"))).decode.worker_id == "d2"


def test_a_queue_outweighs_a_short_prefix_and_not_a_long_one() -> None:
    busy, idle = worker("d1", requests=4, queued=3000), worker("d2")
    assert COST(request(4000, d1=1000), cluster(busy, idle)).decode.worker_id == "d2"
    assert COST(request(8000, d1=7900), cluster(busy, idle)).decode.worker_id == "d1"


def test_a_prefill_worker_that_is_too_small_is_left_out() -> None:
    for policy in (COST, CostPolicy(local_prefill_below=0)):
        busy, small = worker("d", requests=20), prefill("small", max_model_len=2000)
        assert names(policy(request(2000), cluster(busy, small))) == ("d", None, None)
        assert names(policy(request(1999), cluster(busy, small))) == ("d", "small", None)
    pinned = replace(request(2000), hints=RoutingHints(prefill_worker="small"))
    with pytest.raises(ImpossiblePlan, match="small is asked for, but it is in the role prefill and takes up to 2000"):
        COST(pinned, cluster(busy, small))


def test_the_prefill_worker_is_chosen_by_prefix_and_queue() -> None:
    decode = worker("d", requests=30)
    workers = (
        decode,
        prefill("p1", requests=2, queued=3000, read_bytes_per_s=1e6),
        prefill("p2", read_bytes_per_s=1e6),
    )
    assert names(COST(request(5000, p1=1008), cluster(*workers))) == ("d", "p2", None)
    assert names(COST(request(5000, p1=4992), cluster(*workers))) == ("d", "p1", None)


def test_a_worker_without_room_is_avoided() -> None:
    full = worker("d1", requests=4, free=2)
    assert COST(request(500), cluster(full, worker("d2", requests=5))).decode.worker_id == "d2"
    full = worker("d1", requests=16, max_num_seqs=16)
    assert COST(request(500), cluster(full, worker("d2", requests=20))).decode.worker_id == "d2"


def test_a_slower_worker_gets_fewer_requests() -> None:
    assert COST(request(4000), cluster(worker("d1", rate=1000), worker("d2", requests=3))).decode.worker_id == "d2"


def test_a_prefix_is_pulled_from_the_worker_that_has_most_of_it() -> None:
    workers = (worker("d1"), worker("d2", requests=60, queued=9000), prefill("p"))
    plan = COST(request(5000, d2=4000, p=16), cluster(*workers, worker("d3", requests=60)))
    assert plan.prefix_source is not None
    assert plan.prefix_source.worker_id == "d2"
    assert plan.kind is PlanKind.REMOTE_WITH_SOURCE


def test_a_prefix_over_a_slow_link_is_computed_anew() -> None:
    slow = prefill("p", read_bytes_per_s=1e8)  # 250 blocks of 1 MiB would take 2.6 s, their computation 0.4 s
    plan = COST(
        request(5000, d2=4000), cluster(worker("d1", requests=30), worker("d2", requests=60, queued=90_000), slow)
    )
    assert names(plan) == ("d1", "p", None)


def test_a_slightly_longer_prefix_is_not_pulled() -> None:
    free = prefill("p", read_bytes_per_s=1e15)
    workers = (worker("d1", requests=30), worker("d2", requests=60, queued=90_000), free)
    assert COST(request(5000, d2=4032, p=4000), cluster(*workers)).prefix_source is None
    source = COST(request(5000, d2=4128, p=4000), cluster(*workers)).prefix_source
    assert source is not None
    assert source.worker_id == "d2"


def test_requests_just_sent_spread_over_equal_workers() -> None:
    counts = {"d1": 0, "d2": 0, "d3": 0, "d4": 0}
    for turn in range(40):
        snapshot = cluster(*(worker(name, requests=count) for name, count in counts.items()), turn=turn)
        counts[COST(request(10), snapshot).decode.worker_id] += 1
    assert max(counts.values()) - min(counts.values()) <= 2


def test_ties_are_broken_differently_by_each_router() -> None:
    workers = [worker(f"d{number}") for number in range(4)]
    chosen = [
        [COST(request(100), cluster(*workers, turn=turn, seed=seed)).decode.worker_id for turn in range(200)]
        for seed in (11, 22, 11)
    ]
    assert chosen[0] == chosen[2]
    assert sum(a == b for a, b in zip(chosen[0], chosen[1], strict=True)) < 100
    assert all(30 <= count <= 70 for count in Counter(chosen[0]).values())


def test_among_equal_plans_the_less_used_worker_wins() -> None:
    workers = (worker("d1", done=10**6), worker("d2"))
    assert {COST(request(100), cluster(*workers, turn=turn)).decode.worker_id for turn in range(20)} == {"d2"}


def test_pseudorandom_numbers_are_uniform() -> None:
    counts = Counter(chance(number) % 8 for number in range(8000))
    assert all(850 < count < 1150 for count in counts.values())


def test_only_promising_workers_are_priced() -> None:
    workers = [worker(f"d{number}", requests=20, queued=8000) for number in range(20 * MAX_DECODERS)]
    workers[70] = worker("d70", requests=1)
    assert COST(request(1000), cluster(*workers)).decode.worker_id == "d70"
    assert COST(request(8000, d90=7990), cluster(*workers[80:])).decode.worker_id == "d90"


def test_without_decode_workers_there_is_no_plan() -> None:
    for policy in (COST, RoundRobinPolicy(64), LeastLoadedPolicy(64)):
        with pytest.raises(NoWorker, match="no decode worker is ready"):
            policy(request(10), cluster(prefill("p")))


def test_too_long_for_every_worker_that_is_there() -> None:
    short, long = worker("d1", max_model_len=64), worker("d2", requests=50, max_model_len=128)
    assert COST(request(100), cluster(short, long)).decode.worker_id == "d2"
    assert COST(RoutedRequest(10, num_final_tokens=65), cluster(short, long)).decode.worker_id == "d2"
    with pytest.raises(NoWorker, match="takes 129 tokens now; the most is 128"):
        COST(request(128), cluster(short, long))


@pytest.mark.parametrize(("missing", "plan"), [(63, "local"), (64, "remote")])
def test_a_size_decides_where_the_prompt_is_computed(missing: int, plan: str) -> None:
    policy = CostPolicy(local_prefill_below=64)
    chosen = policy(request(960 + missing, d=960), cluster(worker("d", requests=missing % 2 * 60), prefill("p")))
    assert (chosen.prefill is not None) is (plan == "remote")


def test_the_next_best_prefill_workers_are_fallbacks() -> None:
    workers = [prefill(f"p{number}", requests=number, queued=3000 * number) for number in (3, 1, 0, 2)]
    for policy in (COST, LeastLoadedPolicy(None)):
        plan = policy(request(3000), cluster(worker("d", requests=40), *workers))
        assert plan.prefill is not None
        assert plan.prefill.worker_id == "p0"
        assert [each.worker_id for each in plan.prefill_fallbacks] == ["p1", "p2"]


def test_fallbacks_have_the_same_model_and_pinned_requests_have_none() -> None:
    workers = (worker("d", requests=40), prefill("p"), prefill("q", fingerprint="g"))
    assert COST(request(3000), cluster(*workers)).prefill_fallbacks == ()
    pinned = replace(request(3000), hints=RoutingHints(prefill_worker="p"))
    plan = COST(pinned, cluster(worker("d", requests=40), prefill("p"), prefill("r")))
    assert names(plan) == ("d", "p", None)
    assert plan.prefill_fallbacks == ()


def test_a_prompt_goes_where_a_store_has_it_unless_that_is_slower_than_computing() -> None:
    """10,000 tokens a second are computed, and 16 tokens are 1 MiB."""
    stored = replace(request(5000), stored_tokens={"e/1": 4800})
    quick, slow = (replace(worker("e"), kv_stores=("host",), fetch_bytes_per_s=rate) for rate in (10e9, 1e8))
    for turn in range(5):
        assert names(COST(stored, cluster(worker("d"), quick, worker("f"), turn=turn))) == ("e", None, None)
    assert names(COST(stored, cluster(worker("d"), replace(slow, num_requests=9)))) == ("d", None, None)
    busy = replace(quick, num_requests=9, num_queued_tokens=100_000)
    assert names(COST(stored, cluster(worker("d"), busy))) == ("d", None, None)


def test_a_prefill_worker_is_chosen_by_its_store() -> None:
    stored = replace(request(5000), stored_tokens={"q/1": 4800})
    workers = worker("d", requests=20), prefill("p"), replace(prefill("q"), fetch_bytes_per_s=10e9)
    assert names(COST(stored, cluster(*workers))) == ("d", "q", None)
    assert names(COST(replace(stored, cached_tokens={"p/1": 4900}), cluster(*workers)))[1] == "p"


def test_a_stored_prefix_counts_as_short_with_a_fixed_threshold() -> None:
    policy = make_policy("cost", 500, None)
    workers = worker("d"), prefill("p")
    assert names(policy(request(5000), cluster(*workers)))[1] == "p"
    assert names(policy(replace(request(5000), stored_tokens={"d/1": 4800}), cluster(*workers)))[1] is None
