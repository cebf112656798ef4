"""Correction of the models by measured latencies."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, log, sqrt

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.settings import SLO, ScalingSettings
from baton.deployment.autoscaling.snapshot import ReplicaLatency

MIN_SAMPLES = 20  # in a window; quantiles of fewer samples are ignored
ENOUGH_BEYOND = 5.0  # samples beyond the quantile that make it fully trusted
EASING = 5  # the factor falls this much more slowly than it rises
MOST_DT_S = 10.0  # longest time step of the smoothing
BREACH_S = 10.0  # after which a broken objective corrects the model at once
CHANCE_DEVIATIONS = 3  # standard deviations of a quantile that count as chance; it is compared every second
MOST_JUMP = 2.0  # of the factor at once
MOST_FACTOR = 4.0  # of broken objectives; slow corrections stay below `max_correction`
HELPED = 0.9  # ratio of latencies, below which a larger pool has helped
NUM_HALVINGS = 12  # of the search for a factor

Predict = Callable[[float], float]  # the latency's quantile in seconds, by the factor


@dataclass(frozen=True, slots=True)
class Correction:
    """Factor on a pool's service times, with which the model predicts what is measured; smoothed and bounded.

    While the objective is kept, the factor changes slowly. An objective that has been broken by more than chance for
    `BREACH_S`, though the model sees no need for a larger pool, corrects it at once, up to twofold. If the pool has
    grown and the objective is still broken, the factor rises further only if the growth has helped: the cause may lie
    outside of the pool.
    """

    factor: float = 1.0
    num_ready: ByPool[int] | None = None
    steady_since_s: float = 0.0  # when `num_ready` last changed
    updated_s: float = 0.0
    broken_since_s: float | None = None  # None: the objective is kept, or nothing follows from it yet
    jumped_at_s: float = inf  # latency that changed the factor at once, in the present breach

    def is_broken(self, now_s: float) -> bool:
        """Whether the objective has been broken for long enough to act, though the model saw no need for more."""
        return self.broken_since_s is not None and now_s - self.broken_since_s >= BREACH_S

    def after(
        self,
        latencies: Sequence[ReplicaLatency],
        num_ready: ByPool[int],
        predict: Predict,
        objective_s: float,
        is_enough: bool,
        now_s: float,
        window_s: float,
        settings: ScalingSettings,
    ) -> "Correction":
        """Return the correction after one more snapshot. `is_enough`: the pool is as large as the model wants it.

        Samples are used only if both pools' sizes have been constant for a window: otherwise they are of several sizes,
        and a pool is late because the other one was too small.
        """
        dt_s = min(MOST_DT_S, max(0.0, now_s - self.updated_s))
        if num_ready != self.num_ready:
            return self.unknown(num_ready, now_s)
        measured = warm_quantile(latencies, settings.warmup_s)
        if measured is None or now_s - self.steady_since_s < window_s:
            return self.unknown(num_ready, now_s)
        is_over = measured.quantile_s > objective_s
        is_warm = all(each.ready_for_s >= settings.warmup_s + window_s for each in latencies)
        broken_since_s = None
        is_surely_over = measured.quantile_s > objective_s * (1 + measured.chance(settings.slo))
        if is_surely_over and is_enough and is_warm:
            broken_since_s = now_s if self.broken_since_s is None else min(self.broken_since_s, now_s)
        jumped_at_s = self.jumped_at_s if is_over else inf
        updated = replace(self, updated_s=now_s, broken_since_s=broken_since_s, jumped_at_s=jumped_at_s)
        trust = measured.trust(settings.slo)
        if updated.is_broken(now_s) and measured.quantile_s < HELPED * jumped_at_s:
            most = max(self.factor, min(MOST_JUMP * self.factor, MOST_FACTOR))
            found = factor_for(predict, measured.quantile_s, self.factor, most)
            factor = self.factor * (found / self.factor) ** trust
            return replace(updated, factor=factor, jumped_at_s=measured.quantile_s)
        bound = settings.max_correction
        found = factor_for(predict, measured.quantile_s, 1 / bound, bound)
        if is_over and found <= self.factor:
            return updated  # the queue of an overloaded pool is still growing, so nothing follows about the model
        eases = found < self.factor <= bound
        weight = 1 - exp(-trust * dt_s / (settings.correction_s * (EASING if eases else 1)))
        return replace(updated, factor=self.factor * (found / self.factor) ** weight)

    def unknown(self, num_ready: ByPool[int], now_s: float) -> "Correction":
        """Return the correction after a snapshot that says nothing about the model."""
        steady_since_s = self.steady_since_s if num_ready == self.num_ready else now_s
        return Correction(self.factor, num_ready, steady_since_s, now_s, jumped_at_s=self.jumped_at_s)


def factor_for(predict: Predict, measured_s: float, least: float, most: float) -> float:
    """Return the factor with which the prediction is what was measured, by bisection within the bounds.

    Near saturation a little more load makes waits much longer, so a ratio of times would not do. A prediction rises
    with the factor, to infinity for an overload.
    """
    low, high = least, most
    if predict(low) >= measured_s:
        return low
    if predict(high) <= measured_s:
        return high
    for _ in range(NUM_HALVINGS):
        middle = sqrt(low * high)
        if predict(middle) <= measured_s:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured quantile and its number of samples."""

    quantile_s: float
    num_samples: int

    def trust(self, slo: SLO) -> float:
        """Return the weight of these samples, from 0 to 1: how many are beyond the SLO's quantile."""
        return min(1.0, self.num_samples * (1 - slo.quantile) / ENOUGH_BEYOND)

    def chance(self, slo: SLO) -> float:
        """Return the relative error of the quantile by chance: that of exponential times, by order statistics.

        For n of them its standard deviation is the root of q / ((1 - q) * n), in units of their mean, and the quantile
        is ln(1 / (1 - q)) (David and Nagaraja, Order Statistics, 2003).
        """
        beyond = 1 - slo.quantile
        return CHANCE_DEVIATIONS * sqrt(slo.quantile / (beyond * self.num_samples)) / log(1 / beyond)


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
