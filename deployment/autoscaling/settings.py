"""Settings of the autoscaler: objectives, budget, limits and delays."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite

from baton.deployment.autoscaling.by_pool import ByPool

# Longest start of a replica, both for deployments and for the planner: large checkpoints take this long to load, and a
# planner that withdraws replicas earlier would never get one.
START_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SLO:
    """Latency objectives for a fraction of the requests."""

    ttft_s: float = 1.0
    tpot_s: float = 0.05
    quantile: float = 0.95  # fraction of the requests that must be within the times

    @classmethod
    def of(cls, limits_s: Mapping[str, float]) -> "SLO":
        """Return objectives from seconds by name (ttft, tpot); missing names keep their defaults."""
        return cls(**{f"{name}_s": limit_s for name, limit_s in limits_s.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Allowed sizes of a pool, in replicas."""

    gpus_per_replica: int = 1
    min_replicas: int = 1  # while there are requests
    max_replicas: int | None = None  # None: as many as the budget allows


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    """Settings of the operator; docs/autoscaling.md explains each."""

    budget_gpus: int
    slo: SLO = field(default_factory=SLO)
    prefill: PoolLimits = field(default_factory=PoolLimits)
    decode: PoolLimits = field(default_factory=PoolLimits)
    upscale_delay_s: float = 5.0
    downscale_delay_s: float = 300.0
    shift_delay_s: float = 30.0  # instead of the above, when the other pool needs the GPUs
    turn_s: float = 600.0  # minimum time between two changes of direction
    margin: float = 0.15  # extra load that a smaller pool must hold before the pool shrinks
    max_kv_share: float = 0.9  # fraction of a decode replica's KV cache for running sequences
    idle_s: float | None = None  # without requests, until both pools scale to zero; None: never
    start_s: float = 60.0  # assumed until a pool's start time is measured
    drain_s: float = 30.0  # assumed until a pool's drain time is measured
    flip_s: float | None = None  # from drained to ready in the other role; None: workers cannot switch role
    start_timeout_s: float = START_TIMEOUT_S  # or twice the measured start time, if that is longer
    retry_after_s: float = 60.0
    max_retry_after_s: float = 3600.0
    warmup_s: float = 30.0  # samples of younger replicas are ignored
    correction_s: float = 120.0  # time constant of the correction by measured latencies
    max_correction: float = 2.0
    max_gap_s: float = 30.0  # between two snapshots; a longer gap resets the streaks

    @property
    def limits(self) -> ByPool[PoolLimits]:
        """Limits of both pools."""
        return ByPool(self.prefill, self.decode)

    def check(self) -> None:
        """Raise ValueError with the first invalid value."""
        for name in (each.name for each in fields(self) if each.name.endswith("_s")):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}, but must be 0 or more")
        for name in ("correction_s", "start_s", "retry_after_s", "max_gap_s"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name} is 0, but must be above 0")
        if not (self.slo.ttft_s > 0 and self.slo.tpot_s > 0 and isfinite(self.slo.ttft_s + self.slo.tpot_s)):
            raise ValueError(f"ttft_s and tpot_s are {self.slo.ttft_s} and {self.slo.tpot_s}, but must be above 0")
        if not 0.5 <= self.slo.quantile <= 0.99:
            raise ValueError(f"quantile is {self.slo.quantile}, but the model supports only 0.5 to 0.99")
        if not 0 <= self.margin <= 1:
            raise ValueError(f"margin is {self.margin}, but must be 0 to 1")
        if not 0 < self.max_kv_share <= 1:
            raise ValueError(f"max_kv_share is {self.max_kv_share}, but must be above 0 and at most 1")
        if not 1 <= self.max_correction <= 10:
            raise ValueError(f"max_correction is {self.max_correction}, but must be 1 to 10")
        self._check_sizes()

    def _check_sizes(self) -> None:
        for name, limits in zip(("prefill", "decode"), self.limits.both(), strict=True):
            if limits.gpus_per_replica < 1 or limits.min_replicas < 1:
                raise ValueError(f"{name}: gpus_per_replica and min_replicas must be 1 or more")
            if limits.max_replicas is not None and limits.max_replicas < limits.min_replicas:
                raise ValueError(
                    f"{name}: max_replicas {limits.max_replicas} is less than min_replicas {limits.min_replicas}"
                )
        least = sum(limits.gpus_per_replica * limits.min_replicas for limits in self.limits.both())
        if self.budget_gpus < least:
            raise ValueError(f"budget_gpus is {self.budget_gpus}, but the smallest pools need {least}")
