"""Reports, and an observer whose observations come from the test."""

import time

import pytest

from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.ray.observed_pools import ObservedPools
from baton.deployment.ray.pools_observer import Observation
from baton.deployment.ray.scaling import PoolsPolicy
from baton.membership.registry.router_report import RouterReport
from tests.unit.membership.registry.router_reports import router_report, sums, traffic_report, worker_report

DEADLINE_S = 20.0
SETTINGS = ScalingSettings(budget_gpus=8, upscale_delay_s=0.0, downscale_delay_s=0.0)


def pools(rate: float = 1.0, num_prefill: int = 1, num_decode: int = 1) -> RouterReport:
    """Return a report of this many idle replicas, and a load."""
    num = round(60 * rate)
    traffic = traffic_report(num, uncached_tokens=sums(4000.0, num), prompt_tokens=sums(4000.0, num))
    workers = [worker_report(f"prefill-{number}", "prefill") for number in range(num_prefill)]
    workers += [
        worker_report(f"decode-{number}", num_blocks=20_000, num_free_blocks=20_000) for number in range(num_decode)
    ]
    return router_report(*workers, traffic=traffic)


class ScriptedObserver:
    """An observer whose observations come from the test."""

    def __init__(self) -> None:
        self.latest: Observation | None = None
        self.error = "no router has reported"
        self.is_stopped = False

    def see(self, report: RouterReport, settings: ScalingSettings = SETTINGS, age_s: float = 0.0) -> None:
        self.latest = Observation(time.monotonic() - age_s, ObservedPools.of([report]), settings)

    def start(self) -> None:
        """Observe nothing."""

    def stop(self) -> None:
        self.is_stopped = True


def replace_name(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    """Replace a global of the policy; a class that Ray pickled by value has other globals than its module."""
    monkeypatch.setitem(PoolsPolicy.__init__.__globals__, name, value)
