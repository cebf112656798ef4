"""What the cluster looks like at one moment, as far as the sizes of its pools depend on it.

Rates and times that have not been measured yet are 0, as in workers' own reports.
"""

from dataclasses import dataclass, field

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.moments import Moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The requests of the last `window_s`."""

    window_s: float = 60.0
    requests_per_s: float = 0.0
    arrival_cv2: float = 1.0  # squared coefficient of variation of the gaps between requests; 1: Poisson
    prompt_tokens: Moments = field(default_factory=Moments)
    uncached_tokens: Moments = field(default_factory=Moments)  # of prompts, that somebody has to compute
    output_tokens: Moments = field(default_factory=Moments)
    num_ended: int = 0  # answers; 0: none, or nobody counts
    remote_share: float = 1.0  # of the requests, whose prompts prefill workers compute
    remote_tokens: Moments | None = None  # uncached, of these prompts; None: as of all


@dataclass(frozen=True, slots=True)
class ReplicaLatency:
    """A replica's own quantile of TTFT or TPOT, in the last window."""

    ready_for_s: float
    num_samples: int
    quantile_s: float  # of the SLO's quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    """The replicas of one pool."""

    num_ready: int
    starting_since_s: tuple[float, ...] = ()  # for each that is not ready: since when it has been wanted
    num_draining: int = 0
    num_flipping_in: int = 0  # on their way from the other role; no longer among the other pool's
    start_s: float = 0.0  # from wanted to ready, as measured
    drain_s: float = 0.0
    oldest_wait_s: float = 0.0  # of the requests that wait for this pool
    latencies: tuple[ReplicaLatency, ...] = ()

    @property
    def num_live(self) -> int:
        """All that serve, or will."""
        return self.num_ready + len(self.starting_since_s) + self.num_flipping_in


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSnapshot:
    """The prefill pool; latencies are TTFT without the wait for a place at a decode worker."""

    pool: PoolSnapshot
    tokens_per_s: float = 0.0  # of one replica, beside its steps' fixed time
    step_s: float = 0.0  # fixed, of a step
    max_step_tokens: int = 2048
    handover_s: float = 0.0  # what the way and the transfer add to a first token, beyond what computing hides
    queued_tokens: float = 0.0  # uncached, of all that wait or are being computed


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSnapshot:
    """The decode pool; latencies are TPOT."""

    pool: PoolSnapshot
    step_s: float = 0.0  # with one sequence
    sequence_s: float = 0.0  # each further one
    max_num_seqs: int = 256  # of one replica
    kv_tokens: int = 0  # of one replica's KV cache; 0: not known
    kv_used_tokens: int = 0  # of all replicas, by running sequences
    num_running: int = 0
    num_waiting: int = 0  # for a place


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsSnapshot:
    """All that a decision is made from."""

    now_s: float  # of any clock that does not jump
    traffic: Traffic
    prefill: PrefillSnapshot
    decode: DecodeSnapshot

    @property
    def pools(self) -> ByPool[PoolSnapshot]:
        """The replicas of either pool."""
        return ByPool(self.prefill.pool, self.decode.pool)

    @property
    def has_requests(self) -> bool:
        """Whether any came in the window, wait or run."""
        waiting = max(self.prefill.pool.oldest_wait_s, self.decode.pool.oldest_wait_s, self.prefill.queued_tokens)
        return max(self.traffic.requests_per_s, waiting, self.decode.num_running, self.decode.num_waiting) > 0
