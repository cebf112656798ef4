"""Correction of the model by measured latencies."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import exp, inf, isfinite

from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import PoolSnapshot, ReplicaLatency

MIN_SAMPLES = 20  # in a window; quantiles of fewer samples are ignored
ENOUGH_BEYOND = 5.0  # samples beyond the quantile that make it fully trusted
EASING = 5  # the factor falls this much more slowly than it rises
MOST_DT_S = 10.0  # longest time step of the smoothing


@dataclass(frozen=True, slots=True)
class Correction:
    """Factor on a pool's service times: measured over predicted latency, smoothed and bounded."""

    factor: float = 1.0
    num_ready: int = 0
    steady_since_s: float = 0.0  # when `num_ready` last changed
    updated_s: float = 0.0

    def after(
        self,
        pool: PoolSnapshot,
        predicted_s: float | None,
        slo_s: float,
        now_s: float,
        window_s: float,
        settings: ScalingSettings,
    ) -> "Correction":
        """Return the exponentially smoothed factor after one more snapshot. `predicted_s` None: no prediction.

        Only a pool whose size has been constant for a window is used; otherwise its samples are of several sizes.
        """
        dt_s = min(MOST_DT_S, max(0.0, now_s - self.updated_s))
        if pool.num_ready != self.num_ready:
            return replace(self, num_ready=pool.num_ready, steady_since_s=now_s, updated_s=now_s)
        updated = replace(self, updated_s=now_s)
        measured = warm_quantile(pool.latencies, settings.warmup_s)
        if predicted_s is None or measured is None or now_s - self.steady_since_s < window_s:
            return updated
        ratio = _ratio(measured.quantile_s, predicted_s, slo_s, settings.max_correction)
        trust = min(1.0, measured.num_samples * (1 - settings.slo.quantile) / ENOUGH_BEYOND)
        time_s = settings.correction_s * (1 if ratio > 1 else EASING)
        factor = self.factor * ratio ** (1 - exp(-trust * dt_s / time_s))
        bounded = min(max(factor, 1 / settings.max_correction), settings.max_correction)
        return replace(updated, factor=bounded)


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured quantile and its number of samples."""

    quantile_s: float
    num_samples: int


def warm_quantile(latencies: Iterable[ReplicaLatency], warmup_s: float) -> Measured | None:
    """Return the median of the replicas' quantiles, weighted by requests; None if there are too few samples.

    Samples of replicas younger than `warmup_s` are left out: these compile, capture graphs and have an empty cache.
    """
    warm = sorted(
        (latency.quantile_s, latency.num_samples)
        for latency in latencies
        if latency.ready_for_s >= warmup_s and latency.num_samples > 0 and isfinite(latency.quantile_s)
    )
    num_samples = sum(count for _, count in warm)
    if num_samples < MIN_SAMPLES:
        return None
    passed = 0
    for quantile_s, count in warm:
        passed += count
        if 2 * passed >= num_samples:
            return Measured(quantile_s, num_samples) if quantile_s > 0 else None
    return None


def _ratio(measured_s: float, predicted_s: float, slo_s: float, bound: float) -> float:
    """Return measured over predicted, bounded.

    If the model predicts overload (infinite) but the SLO is met, the pool is faster than the model. If the pool is
    really overloaded, nothing follows about the model.
    """
    if predicted_s == inf:
        return 1 / bound if measured_s <= slo_s else 1.0
    if predicted_s <= 0:
        return 1.0
    return min(max(measured_s / predicted_s, 1 / bound), bound)
