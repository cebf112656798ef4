"""Arrivals within the window, compared with a full history."""

from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.deployment.ray.observed_traffic import gaps_cv2
from baton.membership.registry.router_report import ArrivalCount, SampleSums
from baton.router.metrics.traffic import Arrivals, SlidingWindow
from tests.unit.router.rigs.admission_rig import Rig, overloaded, settle

WINDOW_S = 60
EVENTS = st.lists(st.tuples(st.floats(0, 90), st.integers(1, 4)), max_size=60)  # pause before it, completions


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.5

    def __call__(self) -> float:
        return self.now_s


@given(EVENTS, st.floats(0, 90), st.sampled_from([1, 7, WINDOW_S]))
def test_the_window_forgets_exactly_what_is_old(events: list[tuple[float, int]], rest_s: float, longest_s: int) -> None:
    clock = Clock()
    began_s, arrivals, came = clock(), Arrivals(longest_s, clock), list[tuple[float, float | None, int]]()
    for pause_s, num_completions in events:
        clock.now_s += pause_s
        came.append((clock(), pause_s if came else None, num_completions))
        arrivals.add(num_completions)
    clock.now_s += rest_s
    first = floor(clock()) - longest_s + 1
    live = [each for each in came if floor(each[0]) >= first]
    gaps = [gap for _, gap, num in live for gap in (gap, *[0.0] * (num - 1)) if gap is not None and gap < longest_s]
    assert arrivals.num_completions == sum(num for _, _, num in live)
    assert arrivals.gaps_s.num == len(gaps)
    assert arrivals.gaps_s.total == pytest.approx(sum(gaps), abs=1e-6)
    assert arrivals.gaps_s.squares == pytest.approx(sum(gap * gap for gap in gaps), abs=1e-6)
    assert arrivals.window_s == pytest.approx(max(1.0, clock() - max(began_s, first)))
    for part in arrivals.recent:
        assert part.window_s < arrivals.window_s
        assert part.num_requests == sum(num for at_s, _, num in came if at_s >= clock() - part.window_s - 1e-6)


def test_recent_arrivals_are_counted_once_the_window_is_longer() -> None:
    clock = Clock()
    arrivals = Arrivals(WINDOW_S, clock)
    for _ in range(30):
        clock.now_s += 1.0
        arrivals.add(2)
    assert arrivals.recent == (ArrivalCount(9.5, 20), ArrivalCount(19.5, 40))


@given(st.lists(st.floats(0, 30), max_size=100), st.integers(1, 7), st.floats(0.1, 20))
def test_a_sliding_window_has_the_last_spans(pauses: list[float], num_spans: int, span_s: float) -> None:
    now_s, events = 5.0, list[float]()
    window = SlidingWindow(list[float], num_spans, span_s)
    for pause_s in pauses:
        now_s += pause_s
        window.at(now_s).append(now_s)
        events.append(now_s)
        first = now_s // span_s - num_spans + 1
        kept = sorted(each for span in window.live(now_s) for each in span)
        assert kept == [each for each in events if each // span_s >= first]
        assert window.begins_s(now_s) == first * span_s


def test_an_hour_of_silence_does_not_count_as_a_gap() -> None:
    clock = Clock()
    arrivals = Arrivals(WINDOW_S, clock)
    for pause_s in (0.0, 3600.0, 1.0):
        clock.now_s += pause_s
        arrivals.add(1)
    assert arrivals.gaps_s == SampleSums(1, 1.0, 1.0)
    clock.now_s += 3600.0
    assert (arrivals.num_completions, arrivals.gaps_s) == (0, SampleSums())


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 4), st.booleans(), st.floats(0, 90)), max_size=40))
def test_invalid_requests_leave_no_trace_in_the_counts(events: list[tuple[float, int, bool, float]]) -> None:
    clock = Clock()
    both, valid = Arrivals(WINDOW_S, clock), Arrivals(WINDOW_S, clock)
    for pause_s, num_completions, is_valid, checked_after_s in events:
        clock.now_s += pause_s
        arrival = both.add(num_completions)
        if is_valid:
            valid.add(num_completions)
        else:
            clock.now_s += checked_after_s
            both.remove(arrival)
    assert (both.num_completions, both.gaps_s.num) == (valid.num_completions, valid.gaps_s.num)
    assert both.gaps_s.total == pytest.approx(valid.gaps_s.total, abs=1e-6)
    assert both.gaps_s.squares == pytest.approx(valid.gaps_s.squares, abs=1e-6)


def test_invalid_requests_do_not_count_as_variation() -> None:
    clock = Clock()
    arrivals = Arrivals(WINDOW_S, clock)
    for _ in range(40):
        clock.now_s += 1.0
        arrivals.add(1)
    clock.now_s += 0.5
    burst = []
    for _ in range(5000):
        clock.now_s += 1e-5
        burst.append(arrivals.add(1))
    for arrival in burst:
        arrivals.remove(arrival)
    assert (arrivals.num_completions, arrivals.gaps_s.num) == (40, 39)
    assert gaps_cv2(arrivals.gaps_s) == pytest.approx(0.0, abs=1e-6)


async def test_requests_count_on_arrival_whatever_their_outcome() -> None:
    rig = Rig(max_inflight=1, max_queue=1)
    running, waiting = rig.send("a"), rig.send("b")
    await settle()
    rig.now_s += 2.0
    with overloaded("no room"):
        await rig.send("c")
    assert (rig.admission.arrivals.num_completions, rig.admission.oldest_wait_s) == (3, 2.0)
    rig.end("a", "b")
    await running
    await waiting
    assert (rig.admission.arrivals.num_completions, rig.admission.oldest_wait_s) == (3, 0.0)
    rig.admission.draining = True  # they go to other routers, and count there
    await settle()
    with pytest.raises(Exception, match="shutting down"):
        await rig.send("d")
    assert rig.admission.arrivals.num_completions == 3
