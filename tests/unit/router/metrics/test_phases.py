"""Histograms of the phases of a completion."""

import pytest

from baton.router.metrics import live as live_module
from baton.router.metrics import phases as phases_module
from baton.router.metrics.live import LiveCompletion
from baton.router.metrics.metrics import RouterMetrics
from baton.router.policy.cluster import Plan
from tests.unit.router.rigs.cluster_builder import worker
from tests.unit.router.series import read_series

PLAN = Plan(worker("decode-0"), None, None, "")


class Clock:
    """A clock that the test sets, in place of the module `time`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (live_module, phases_module):
        monkeypatch.setattr(module, "time", clock)
    return clock


def sums(metrics: RouterMetrics) -> dict[str, tuple[float, float]]:
    """Return count and sum of the histograms of phases."""
    found = read_series(metrics.registry)
    names = ("dispatch", "prefill", "decode", "inference")
    keys = {name: f"baton:request_{name}_time_seconds" for name in names}
    return {
        name: (found[f'{key}_count{{model_name="m"}}'], found[f'{key}_sum{{model_name="m"}}'])
        for name, key in keys.items()
    }


def test_phases_add_up_to_the_time_until_the_last_token(clock: Clock) -> None:
    metrics = RouterMetrics("m", 60)
    live = metrics.live.begin(LiveCompletion("r", 0, 10, 20, 1.0))
    for clock.now_s, num_tokens in ((3.0, None), (7.0, 1), (8.0, 2), (15.0, 1)):
        if num_tokens is None:
            metrics.routed(live, PLAN)
        else:
            metrics.live.tokens(live, num_tokens)
    clock.now_s = 99.0
    metrics.dispatch_ended(live)
    assert sums(metrics) == {"dispatch": (1, 2), "prefill": (1, 4), "decode": (1, 8), "inference": (1, 12)}


def test_a_failover_is_part_of_the_phase_in_which_it_happens(clock: Clock) -> None:
    metrics = RouterMetrics("m", 60)
    live = metrics.live.begin(LiveCompletion("r", 0, 10, 20, 0.0))
    clock.now_s = 1.0
    metrics.routed(live, PLAN)
    metrics.live.left(live)
    clock.now_s = 5.0
    metrics.routed(live, PLAN)
    clock.now_s = 6.0
    metrics.live.tokens(live, 1)
    metrics.dispatch_ended(live)
    assert sums(metrics) == {"dispatch": (1, 1), "prefill": (1, 5), "decode": (1, 0), "inference": (1, 5)}


def test_a_completion_without_tokens_has_no_phases(clock: Clock) -> None:
    metrics = RouterMetrics("m", 60)
    metrics.dispatch_ended(metrics.live.begin(LiveCompletion("r", 0, 10, 20, 0.0)))
    assert set(sums(metrics).values()) == {(0, 0)}
