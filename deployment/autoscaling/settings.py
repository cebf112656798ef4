"""What is promised, what may be used for it, and how hastily."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite

from baton.deployment.autoscaling.by_pool import ByPool

# The longest start of a replica, for who waits for one as for who plans with it: a large checkpoint takes so long to
# load, and where the planner takes back sooner what is still loading, it never comes.
START_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SLO:
    """Times that are promised for a share of the requests."""

    ttft_s: float = 1.0
    tpot_s: float = 0.05
    quantile: float = 0.95  # of the requests, whose time is within the above

    @classmethod
    def of(cls, limits_s: Mapping[str, float]) -> "SLO":
        """Return the objectives of these seconds by name (ttft, tpot); the others have their defaults."""
        return cls(**{f"{name}_s": limit_s for name, limit_s in limits_s.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Sizes that a pool may have."""

    gpus_per_replica: int = 1
    min_replicas: int = 1  # while there are requests
    max_replicas: int | None = None  # None: as many as the budget allows


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    """Everything that an operator chooses. docs/autoscaling.md explains each."""

    budget_gpus: int
    slo: SLO = field(default_factory=SLO)
    prefill: PoolLimits = field(default_factory=PoolLimits)
    decode: PoolLimits = field(default_factory=PoolLimits)
    upscale_delay_s: float = 5.0
    downscale_delay_s: float = 300.0
    shift_delay_s: float = 30.0  # instead of the above, when the other pool needs the GPUs
    turn_s: float = 600.0  # within it a pool changes direction once
    margin: float = 0.15  # of more load that a smaller pool must hold too
    max_kv_share: float = 0.9  # of a decode replica's KV cache, that running sequences fill
    idle_s: float | None = None  # without a request, until both pools go to zero; None: never
    start_s: float = 60.0  # until a pool's start time was measured
    drain_s: float = 30.0  # until a pool's drain time was measured
    flip_s: float | None = None  # from drained to ready in the other role; None: no worker can serve it
    start_timeout_s: float = START_TIMEOUT_S  # twice what starts were measured to take, if that is longer
    retry_after_s: float = 60.0
    max_retry_after_s: float = 3600.0
    warmup_s: float = 30.0  # of a replica, whose samples do not count
    correction_s: float = 120.0  # over which the measured times correct the model
    max_correction: float = 2.0
    max_gap_s: float = 30.0  # between two looks; what was seen before a longer one does not count

    @property
    def limits(self) -> ByPool[PoolLimits]:
        """Those of either pool."""
        return ByPool(self.prefill, self.decode)

    def check(self) -> None:
        """Raises ValueError naming the first value that makes no sense."""
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
            raise ValueError(f"quantile is {self.slo.quantile}, but two moments tell no more than 0.5 to 0.99")
        if not 0 <= self.margin <= 1:
            raise ValueError(f"margin is {self.margin}, but must be 0 to 1")
        if not 0 < self.max_kv_share <= 1:
            raise ValueError(f"max_kv_share is {self.max_kv_share}, but must be above 0, and 1 at most")
        if not 1 <= self.max_correction <= 10:
            raise ValueError(f"max_correction is {self.max_correction}, but must be 1 to 10")
        self._check_sizes()

    def _check_sizes(self) -> None:
        for name, limits in zip(("prefill", "decode"), self.limits.both(), strict=True):
            if limits.gpus_per_replica < 1 or limits.min_replicas < 1:
                raise ValueError(f"{name} needs 1 or more GPUs a replica, and 1 or more replicas while it is awake")
            if limits.max_replicas is not None and limits.max_replicas < limits.min_replicas:
                raise ValueError(
                    f"{name} has max_replicas {limits.max_replicas} under min_replicas {limits.min_replicas}"
                )
        least = sum(limits.gpus_per_replica * limits.min_replicas for limits in self.limits.both())
        if self.budget_gpus < least:
            raise ValueError(f"budget_gpus is {self.budget_gpus}, but the smallest pools need {least}")
