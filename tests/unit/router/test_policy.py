"""Which workers are chosen, and the reason for each choice."""

import pytest

from router.cluster import ClusterSnapshot, PlanKind, RoutedRequest, WorkerRole, WorkerSnapshot
from router.errors import NoWorker
from router.policy import PrefixPolicy, RoundRobinPolicy, make_policy

POLICY = PrefixPolicy(local_prefill_below=64)


def worker(
    name: str, role: WorkerRole = WorkerRole.DECODE, requests: int = 0, queued: int = 0, free: int = 1000,
    fingerprint: str = "f", max_model_len: int = 4096,
) -> WorkerSnapshot:  # fmt: skip
    return WorkerSnapshot(
        worker_id=name, incarnation=f"{name}/1", address=f"{name}:1", role=role, fingerprint=fingerprint,
        block_size=16, num_requests=requests, num_queued_tokens=queued, num_free_blocks=free,
        max_model_len=max_model_len,
    )  # fmt: skip


def prefill(name: str, requests: int = 0, queued: int = 0, fingerprint: str = "f") -> WorkerSnapshot:
    return worker(name, WorkerRole.PREFILL, requests, queued, fingerprint=fingerprint)


def cluster(*workers: WorkerSnapshot, turn: int = 0) -> ClusterSnapshot:
    return ClusterSnapshot(workers, turn)


def request(num_tokens: int, **cached: int) -> RoutedRequest:
    return RoutedRequest(num_tokens, {f"{name}/1": count for name, count in cached.items()})


def test_a_long_prompt_goes_through_a_prefill_worker() -> None:
    plan = POLICY(request(500), cluster(worker("d"), prefill("p")))
    assert (plan.decode.worker_id, plan.prefill and plan.prefill.worker_id) == ("d", "p")
    assert plan.kind is PlanKind.REMOTE
    assert plan.reason == "500 tokens uncached at the decode worker"


@pytest.mark.parametrize(("num_tokens", "cached", "local"), [(63, 0, True), (64, 0, False), (500, 448, True)])
def test_few_uncached_tokens_are_prefilled_at_the_decode_worker(num_tokens: int, cached: int, local: bool) -> None:
    plan = POLICY(request(num_tokens, d=cached), cluster(worker("d"), prefill("p")))
    assert (plan.prefill is None) is local


def test_zero_means_never_local() -> None:
    plan = PrefixPolicy(0)(request(500, d=500), cluster(worker("d"), prefill("p")))
    assert plan.prefill is not None


def test_without_prefill_workers_the_decode_worker_prefills() -> None:
    plan = POLICY(request(500), cluster(worker("d")))
    assert (plan.kind, plan.reason) == (PlanKind.LOCAL, "no prefill worker")


def test_a_colocated_worker_is_always_local() -> None:
    plan = POLICY(request(500), cluster(worker("b", WorkerRole.BOTH), prefill("p")))
    assert (plan.kind, plan.reason) == (PlanKind.LOCAL, "a colocated worker prefills its own requests")


def test_only_equal_fingerprints_are_paired() -> None:
    plan = POLICY(request(500), cluster(worker("d"), prefill("p", fingerprint="other")))
    assert plan.prefill is None
    plan = POLICY(request(500, q=480), cluster(worker("d"), prefill("p"), prefill("q", fingerprint="other")))
    assert plan.prefill is not None
    assert plan.prefill.worker_id == "p"
    assert plan.prefix_source is None


def test_the_longest_prefix_wins_among_equally_loaded_workers() -> None:
    plan = POLICY(request(500, d2=256), cluster(worker("d1"), worker("d2"), worker("d3")))
    assert plan.decode.worker_id == "d2"


def test_load_outweighs_a_short_prefix_and_not_a_long_one() -> None:
    busy, idle = worker("d1", requests=4, queued=100), worker("d2")
    assert POLICY(request(500, d1=128), cluster(busy, idle)).decode.worker_id == "d2"  # 164 of load for 128 tokens
    assert POLICY(request(500, d1=256), cluster(busy, idle)).decode.worker_id == "d1"


def test_the_prefill_worker_is_chosen_by_prefix_and_load() -> None:
    workers = (worker("d"), prefill("p1", queued=300), prefill("p2"))
    plan = POLICY(request(500, p1=256), cluster(*workers))
    assert plan.prefill is not None
    assert plan.prefill.worker_id == "p2"
    plan = POLICY(request(500, p1=400), cluster(*workers))
    assert plan.prefill is not None
    assert plan.prefill.worker_id == "p1"


def test_a_worker_without_room_is_avoided() -> None:
    assert POLICY(request(500), cluster(worker("d1", free=2), worker("d2", requests=20))).decode.worker_id == "d2"


def test_a_third_worker_with_clearly_more_of_the_prefix_is_the_source() -> None:
    workers = (worker("d1"), worker("d2", requests=60), prefill("p"))
    plan = POLICY(request(500, d2=400, p=16), cluster(*workers))
    assert plan.decode.worker_id == "d1"
    assert plan.prefix_source is not None
    assert plan.prefix_source.worker_id == "d2"
    assert plan.kind is PlanKind.REMOTE_WITH_SOURCE


def test_a_little_more_of_the_prefix_makes_no_source() -> None:
    plan = POLICY(request(500, d2=400, p=352), cluster(worker("d1"), worker("d2", requests=60), prefill("p")))
    assert plan.decode.worker_id == "d1"
    assert plan.prefix_source is None


def test_the_decode_worker_itself_can_be_the_source() -> None:
    plan = POLICY(request(500, d=320), cluster(worker("d"), prefill("p")))
    assert plan.prefill is not None
    assert plan.prefix_source is not None
    assert plan.prefix_source.worker_id == "d"


def test_requests_just_sent_spread_over_equal_workers() -> None:
    counts = {"d1": 0, "d2": 0}
    for _ in range(10):
        snapshot = cluster(*(worker(name, requests=count) for name, count in counts.items()))
        counts[POLICY(request(10), snapshot).decode.worker_id] += 1
    assert counts == {"d1": 5, "d2": 5}


def test_nobody_to_decode() -> None:
    with pytest.raises(NoWorker, match="no decode worker is ready"):
        POLICY(request(10), cluster(prefill("p")))
    with pytest.raises(NoWorker, match="no decode worker is ready"):
        RoundRobinPolicy(64)(request(10), cluster())


def test_too_long_for_every_worker_that_is_there() -> None:
    short, long = worker("d1", max_model_len=64), worker("d2", requests=50, max_model_len=128)
    assert POLICY(request(100), cluster(short, long)).decode.worker_id == "d2"
    assert POLICY(RoutedRequest(10, num_final_tokens=65), cluster(short, long)).decode.worker_id == "d2"
    with pytest.raises(NoWorker, match="the most is 128"):
        POLICY(request(128), cluster(short, long))


def test_round_robin_takes_turns() -> None:
    policy = RoundRobinPolicy(64)
    workers = (worker("d2"), worker("d1"), prefill("p1"), prefill("p2"))
    plans = [policy(request(100), cluster(*workers, turn=turn)) for turn in range(4)]
    pairs = [(plan.decode.worker_id, plan.prefill.worker_id if plan.prefill else "") for plan in plans]
    assert pairs == [("d1", "p1"), ("d2", "p1"), ("d1", "p2"), ("d2", "p2")]


def test_policies_by_name() -> None:
    assert make_policy("round_robin", 5) == RoundRobinPolicy(5)
    with pytest.raises(ValueError, match="must be one of prefix, round_robin"):
        make_policy("best", 5)
