"""Recent lengths and latencies."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.membership.registry.router_report import SampleSums, bin_of
from baton.protos.common_pb2 import ServedBy
from baton.protos.worker_pb2 import RequestDelta
from baton.router.dispatch.attempt import AttemptTimes
from baton.router.metrics.traffic import SPANS, Traffic, uncached_tokens
from baton.router.policy.cluster import Plan
from tests.unit.router.metrics.test_arrivals import Clock
from tests.unit.router.rigs.cluster_builder import prefill, request, worker

WINDOW_S = 60
TIMES = st.lists(st.tuples(st.floats(0, 40), st.sampled_from(["a", "b"]), st.floats(1e-4, 10)), max_size=50)


def sums(*values: float) -> SampleSums:
    return SampleSums(len(values), sum(values), sum(value * value for value in values))


@given(TIMES)
def test_times_are_those_of_the_window(events: list[tuple[float, str, float]]) -> None:
    clock = Clock()
    traffic, seen = Traffic(WINDOW_S, clock), list[tuple[float, str, float]]()
    for pause_s, name, time_s in events:
        clock.now_s += pause_s
        seen.append((clock(), name, time_s))
        traffic.add_latency(name, time_s)
        traffic.latency("a")  # whoever reads it changes nothing
    span_s = WINDOW_S / SPANS
    first = clock() // span_s - SPANS
    for name in ("a", "b", "never seen"):
        live = [time_s for at_s, who, time_s in seen if who == name and at_s // span_s >= first]
        assert traffic.latency(name) == Counter(map(bin_of, live))


def test_lengths_are_forgotten_after_a_minute() -> None:
    clock = Clock()
    traffic = Traffic(WINDOW_S, clock)
    plan = Plan(worker("d"), prefill("p"), None, "")
    traffic.routed(plan, request(100, p=64, d=16))
    traffic.routed(Plan(worker("d"), None, None, ""), request(50, d=16))
    traffic.ended(7)
    clock.now_s += 30
    traffic.ended(9)
    lengths = traffic.lengths
    assert (lengths.prompt, lengths.uncached, lengths.output) == (sums(100, 50), sums(36, 34), sums(7, 9))
    assert lengths.remote == sums(36)
    clock.now_s += WINDOW_S - 30
    lengths = traffic.lengths
    assert (lengths.prompt, lengths.uncached, lengths.remote, lengths.output) == (sums(), sums(), sums(), sums(9))


def test_tokens_are_of_the_span_in_which_they_came() -> None:
    clock = Clock()
    traffic = Traffic(WINDOW_S, clock)
    assert (traffic.lengths.num_generated, traffic.lengths.asked) == (0, sums())
    traffic.generated(3)
    traffic.generated(4)
    assert traffic.lengths.num_generated == 7  # whoever runs counts too
    clock.now_s += 30
    plan = Plan(worker("d"), None, None, "")
    traffic.routed(plan, replace(request(100, d=16), num_final_tokens=150))
    traffic.routed(plan, request(100, d=16))  # nobody knows how much
    traffic.generated(5)
    traffic.ended(12)
    assert (traffic.lengths.num_generated, traffic.lengths.asked) == (12, sums(50))
    clock.now_s += WINDOW_S - 30
    assert (traffic.lengths.num_generated, traffic.lengths.asked) == (5, sums(50))
    clock.now_s += 30
    assert (traffic.lengths.num_generated, traffic.lengths.asked) == (0, sums())


def test_lost_workers_take_no_memory() -> None:
    clock = Clock()
    traffic = Traffic(WINDOW_S, clock)
    for number in range(1000):
        clock.now_s += 1.0
        traffic.add_latency(f"life {number}", 0.1)
    assert len(traffic._latencies) <= WINDOW_S + WINDOW_S / SPANS + 1


def test_cached_and_pulled_tokens_are_not_computed() -> None:
    decode, computes, source = worker("d"), prefill("p"), worker("s")
    routed = request(100, d=32, p=48, s=80)
    assert uncached_tokens(Plan(decode, None, None, ""), routed) == 68
    assert uncached_tokens(Plan(decode, computes, None, ""), routed) == 52
    assert uncached_tokens(Plan(decode, computes, source, ""), routed) == 20
    assert uncached_tokens(Plan(decode, None, source, ""), request(80, s=80)) == 1  # for its logits


def test_each_worker_is_measured_by_its_own_part(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("baton.router.dispatch.attempt.time.perf_counter", clock)
    traffic, decode = Traffic(WINDOW_S), worker("d")

    def attempt(plan: Plan, is_first: bool, prefill_worker: str = "p") -> None:
        times = AttemptTimes(traffic, plan, is_first)
        for pause_s, num_tokens in ((0.5, 1), (0.02, 1), (0.04, 2)):
            clock.now_s += pause_s
            times.tokens(RequestDelta(token_ids=[1] * num_tokens, served_by=ServedBy(prefill_worker=prefill_worker)))
        clock.now_s += 10.0  # a worker that is lost is noticed late
        times.ended()

    attempt(Plan(decode, prefill("p"), None, ""), is_first=True)
    assert (traffic.latency("p/1"), traffic.latency("d/1")) == ({bin_of(0.5): 1}, {bin_of(0.02): 1})
    attempt(Plan(decode, prefill("p"), None, ""), is_first=False)
    attempt(Plan(decode, None, None, ""), is_first=True)
    assert (traffic.latency("p/1"), traffic.latency("d/1")) == ({bin_of(0.5): 1}, {bin_of(0.02): 3})
    for other in ("d", "q", ""):  # the handover failed; the decode worker computed the prompt, or had another do it
        attempt(Plan(decode, prefill("p"), None, ""), is_first=True, prefill_worker=other)
    assert traffic.latency("p/1") == {bin_of(0.5): 1}
    AttemptTimes(traffic, Plan(decode, prefill("q"), None, ""), is_first=True).ended()
    assert traffic.latency("q/1") == {}
