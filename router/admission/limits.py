"""The bounds of admission."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """How much is taken on, and for how long anybody waits."""

    max_inflight: int  # choices
    max_queue: int  # choices; 0: nobody waits
    default_timeout_s: float | None = None  # of requests that state none; None: no limit
    max_wait_s: float | None = None  # of anybody in the queue; None: no limit
    no_worker_timeout_s: float = 30.0  # how long those who wait do so without any decode worker
