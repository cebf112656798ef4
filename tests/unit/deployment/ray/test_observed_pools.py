"""The planner's snapshot, from routers' reports."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.input_check import decode_fault, prefill_fault, snapshot_fault
from baton.deployment.autoscaling.snapshot import PoolsSnapshot, ReplicaLatency
from baton.deployment.ray.observed_pools import HANDOVER_S, ObservedPools, merged_workers
from baton.deployment.ray.pool_progress import PoolProgress
from baton.membership.registry.router_report import RouterReport, bin_of, quantile_of_bins
from tests.unit.membership.registry.router_reports import router_report, sums, traffic_report, worker_report

NOTHING = ByPool(PoolProgress(), PoolProgress())
LATENCIES = st.dictionaries(st.integers(-100, 100), st.integers(1, 9), max_size=5)


def snapshot_of(*reports: RouterReport, progress: ByPool[PoolProgress] = NOTHING) -> PoolsSnapshot:
    return ObservedPools.of(reports).snapshot(progress, 0.95, 7.0)


def prefill_worker(name: str = "prefill-0", **changes: Any) -> Any:
    return worker_report(name, "prefill", **changes)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), LATENCIES, st.booleans()), max_size=12))
def test_each_worker_is_counted_once(seen: list[tuple[str, int, dict[int, int], bool]]) -> None:
    reports = [
        router_report(
            worker_report(name, num_running=number, latency=latency, draining=draining, ready_for_s=float(age)),
            router_id=f"router-{number}",
            time_s=float(number),
        )
        for number, (name, age, latency, draining) in enumerate(seen)
    ]
    merged = {each.worker_id: each for each in merged_workers(reversed(reports))}
    assert set(merged) == {name for name, *_ in seen}
    for name, worker in merged.items():
        mine = [(number, *each) for number, each in enumerate(seen) if each[0] == name]
        assert worker.num_running == max(number for number, *_ in mine)  # from the latest report
        assert worker.latency == sum((Counter(latency) for *_, latency, _ in mine), Counter())
        assert worker.draining == any(draining for *_, draining in mine)
        assert worker.ready_for_s == max(age for _, _, age, *_ in mine)


def test_both_pools_are_in_the_snapshot() -> None:
    slow, fast = {bin_of(0.5): 19, bin_of(2.0): 1}, {bin_of(0.1): 5}
    first = router_report(
        prefill_worker(latency=slow, num_queued_tokens=300, num_running=1),
        prefill_worker("prefill-1", draining=True, num_queued_tokens=900),
        worker_report(num_running=3, num_free_blocks=900, latency={bin_of(0.02): 40}),
        worker_report("both-0", "both", num_running=2, num_blocks=500, num_free_blocks=500, max_num_seqs=32),
    )
    second = router_report(prefill_worker(latency=fast), router_id="router-2", time_s=1.0)
    progress = ByPool(PoolProgress(starting_since_s=(3.0,), start_s=40.0), PoolProgress())
    seen = snapshot_of(first, second, progress=progress)
    assert (seen.now_s, seen.traffic.requests_per_s) == (7.0, 20.0)
    pool = seen.prefill.pool
    assert (pool.num_ready, pool.starting_since_s, pool.start_s, pool.num_draining) == (1, (3.0,), 40.0, 1)
    merged = dict(Counter(slow) + Counter(fast))
    assert pool.latencies == (ReplicaLatency(100.0, 25, quantile_of_bins(merged, 0.95)),)
    assert (seen.prefill.tokens_per_s, seen.prefill.step_s, seen.prefill.max_step_tokens) == (10_000.0, 0.01, 2048)
    assert seen.prefill.queued_tokens == 300  # without those of the draining worker
    assert seen.prefill.handover_s == HANDOVER_S > 0
    assert (seen.decode.pool.num_ready, seen.decode.num_running, seen.decode.num_waiting) == (2, 5, 0)
    assert (seen.decode.step_s, seen.decode.sequence_s, seen.decode.max_num_seqs) == (0.01, 0.001, 32)
    assert (seen.decode.kv_tokens, seen.decode.kv_used_tokens) == (8000, 1600)
    assert snapshot_fault(seen) is prefill_fault(seen) is decode_fault(seen) is None


def test_workers_beyond_the_target_count_as_draining() -> None:
    workers = [worker_report(f"decode-{number}", draining=number == 0) for number in range(4)]
    progress = ByPool(PoolProgress(), PoolProgress(num_stopping=1))
    pool = snapshot_of(router_report(*workers), progress=progress).decode.pool
    assert (pool.num_ready, pool.num_draining) == (2, 2)


def test_without_measurements_a_pool_is_not_planned() -> None:
    unmeasured = {"prefill_tokens_per_s": 0.0, "decode_step_s": 0.0, "decode_sequence_s": 0.0}
    seen = snapshot_of(router_report(prefill_worker(**unmeasured), worker_report(**unmeasured)))
    assert "prompt tokens per second are 0" in str(prefill_fault(seen))
    assert "step takes 0" in str(decode_fault(seen))
    known = snapshot_of(router_report(worker_report(**unmeasured), worker_report("decode-1", decode_step_s=0.02)))
    assert known.decode.step_s == 0.02


def test_blocks_of_requests_that_still_receive_kv_are_no_context() -> None:
    # 20 run and 60 wait for their prompts, with 1,000 tokens each.
    decode = worker_report(num_running=20, num_waiting=60, num_blocks=10_000, num_free_blocks=5_000)
    seen = snapshot_of(router_report(prefill_worker(num_running=4, num_waiting=56), decode))
    assert (seen.decode.num_running, seen.decode.kv_used_tokens) == (20, 20_000)
    # A waiting request whose prompt is not being prefilled has no blocks yet.
    seen = snapshot_of(router_report(prefill_worker(), decode))
    assert seen.decode.kv_used_tokens == 80_000
    assert snapshot_of(router_report(prefill_worker())).decode.kv_used_tokens == 0


def test_requests_without_a_place_in_the_batch_wait() -> None:
    # 4 decode; 6 have received their prompts and take no part yet.
    decode = worker_report(num_running=10, max_num_seqs=4, num_free_blocks=900)
    seen = snapshot_of(router_report(prefill_worker(), decode)).decode
    assert (seen.num_running, seen.num_waiting, seen.kv_used_tokens) == (4, 6, 640)
    seen = snapshot_of(router_report(prefill_worker(), decode, worker_report("decode-1", max_num_seqs=4))).decode
    assert (seen.num_running, seen.num_waiting) == (4, 2)
    unknown = snapshot_of(router_report(worker_report(num_running=10, max_num_seqs=0))).decode
    assert (unknown.num_running, unknown.num_waiting) == (10, 0)


def waiting(num_waiting: int) -> Any:
    return traffic_report(num_waiting=num_waiting, oldest_wait_s=3.0)


def test_a_queue_waits_for_decode_if_its_batch_is_full() -> None:
    busy = worker_report(num_running=64)
    seen = snapshot_of(router_report(prefill_worker(), busy, traffic=waiting(10)))
    assert (seen.decode.num_waiting, seen.decode.pool.oldest_wait_s) == (10, 3.0)
    assert (seen.prefill.queued_tokens, seen.prefill.pool.oldest_wait_s) == (0, 0.0)
    full = worker_report(num_running=8, num_free_blocks=0)
    assert snapshot_of(router_report(prefill_worker(), full, traffic=waiting(10))).decode.num_waiting == 10
    empty = snapshot_of(router_report(traffic=waiting(10)))
    assert (empty.decode.num_waiting, empty.has_requests) == (10, True)


def test_a_queue_waits_for_prefill_if_decode_has_free_places() -> None:
    # All requests in flight wait for their prompts, at workers with room for more.
    workers = (prefill_worker(num_running=4, num_waiting=50, num_queued_tokens=30_000), worker_report(num_waiting=54))
    seen = snapshot_of(router_report(*workers, traffic=waiting(10)))
    assert (seen.decode.num_waiting, seen.decode.pool.oldest_wait_s) == (0, 0.0)
    assert (seen.prefill.queued_tokens, seen.prefill.pool.oldest_wait_s) == (30_000 + 10 * 500, 3.0)
    # With fewer places some of the queue would have to wait for them too.
    seen = snapshot_of(router_report(workers[0], worker_report(num_waiting=54, max_num_seqs=57), traffic=waiting(10)))
    assert (seen.decode.num_waiting, seen.prefill.queued_tokens) == (7, 30_000 + 3 * 500)


def test_only_part_of_a_routers_queue_needs_prefill_workers() -> None:
    traffic = traffic_report(num_waiting=8, oldest_wait_s=3.0, remote_tokens=sums(900.0, 300))
    seen = snapshot_of(router_report(prefill_worker(), worker_report(), traffic=traffic))
    assert seen.prefill.queued_tokens == 8 * 900 / 2
