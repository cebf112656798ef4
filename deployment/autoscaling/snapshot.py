"""Snapshot of a cluster: the inputs of a scaling decision.

Rates and times that have not been measured yet are 0, as in workers' reports.
"""

from dataclasses import dataclass, field

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.moments import Moments


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The arrivals of the last `window_s`."""

    window_s: float
    num_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The requests of the last `window_s`."""

    window_s: float = 60.0
    requests_per_s: float = 0.0
    arrival_cv2: float = 1.0  # squared coefficient of variation of the gaps between requests; 1: Poisson
    prompt_tokens: Moments = field(default_factory=Moments)
    uncached_tokens: Moments = field(default_factory=Moments)  # prompt tokens to prefill
    output_tokens: Moments = field(default_factory=Moments)
    num_ended: int = 0  # finished outputs; 0: none, or not counted
    remote_share: float = 1.0  # fraction of the requests that prefill workers prefill
    remote_tokens: Moments | None = None  # uncached tokens of these prompts; None: as for all
    recent: tuple[Arrivals, ...] = ()  # the last parts of the window, shortest first; empty: not counted


@dataclass(frozen=True, slots=True)
class ReplicaLatency:
    """Quantile of a replica's TTFT or TPOT in the last window."""

    ready_for_s: float
    num_samples: int
    quantile_s: float  # at the SLO's quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    """The replicas of one pool."""

    num_ready: int
    starting_since_s: tuple[float, ...] = ()  # request time of each replica that is not ready
    num_draining: int = 0
    num_flipping_in: int = 0  # switching from the other role; not counted in the other pool
    start_s: float = 0.0  # measured, from requested to ready
    drain_s: float = 0.0
    oldest_wait_s: float = 0.0  # of the requests that wait for this pool
    latencies: tuple[ReplicaLatency, ...] = ()

    @property
    def num_live(self) -> int:
        """Ready, starting and flipping-in replicas."""
        return self.num_ready + len(self.starting_since_s) + self.num_flipping_in


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSnapshot:
    """The prefill pool; latencies are TTFT without the wait for a decode slot."""

    pool: PoolSnapshot
    tokens_per_s: float = 0.0  # of one replica, without the fixed time of a step
    step_s: float = 0.0  # fixed time of a step
    max_step_tokens: int = 2048
    handover_s: float = 0.0  # added to TTFT by network and transfer, beyond what overlaps with prefill
    queued_tokens: float = 0.0  # uncached tokens that are waiting or being prefilled


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSnapshot:
    """The decode pool; latencies are TPOT."""

    pool: PoolSnapshot
    step_s: float = 0.0  # with one sequence
    sequence_s: float = 0.0  # added by each further sequence
    max_num_seqs: int = 256  # of one replica
    kv_tokens: int = 0  # of one replica's KV cache; 0: unknown
    kv_used_tokens: int = 0  # of all replicas, by running sequences
    num_running: int = 0
    num_waiting: int = 0  # for a slot


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsSnapshot:
    """Inputs of one decision."""

    now_s: float  # of any monotonic clock
    traffic: Traffic
    prefill: PrefillSnapshot
    decode: DecodeSnapshot

    @property
    def pools(self) -> ByPool[PoolSnapshot]:
        """Replicas of both pools."""
        return ByPool(self.prefill.pool, self.decode.pool)

    @property
    def has_requests(self) -> bool:
        """Whether any request arrived in the window, is waiting or is running."""
        waiting = max(self.prefill.pool.oldest_wait_s, self.decode.pool.oldest_wait_s, self.prefill.queued_tokens)
        return max(self.traffic.requests_per_s, waiting, self.decode.num_running, self.decode.num_waiting) > 0
