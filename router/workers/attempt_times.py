"""How soon the workers of one attempt answer."""

import time

from baton.protos.worker_pb2 import RequestDelta
from baton.router.metrics.traffic import Traffic
from baton.router.policy.cluster import Plan, WorkerRole


class AttemptTimes:
    """Times a choice at its workers, and tells the traffic: TTFT of who computes the prompt, TPOT of who decodes.

    A first token that another than the plan's prefill worker computed says nothing of it: the decode worker does that
    itself where the handover fails. Nor does one after another attempt.
    """

    def __init__(self, traffic: Traffic, plan: Plan, is_first: bool) -> None:
        self._traffic = traffic
        self._prefill = plan.prefill if is_first else None
        self._decode = plan.decode.incarnation
        self._sent_s = time.perf_counter()
        self._first_s: float | None = None
        self._last_s = 0.0
        self._num_further = 0  # tokens after the first news

    def tokens(self, delta: RequestDelta) -> None:
        """Tokens came; the first of them say who computed the prompt."""
        self._last_s = time.perf_counter()
        if self._first_s is not None:
            self._num_further += len(delta.token_ids)
            return
        self._first_s = self._last_s
        if self._prefill is None or self._prefill.role is WorkerRole.BOTH:
            return  # such a worker's times are those of what it decodes
        if self._prefill.worker_id == delta.served_by.prefill_worker:
            self._traffic.took(self._prefill.incarnation, self._first_s - self._sent_s)

    def ended(self) -> None:
        """No more tokens come."""
        if self._first_s is not None and self._num_further:
            self._traffic.took(self._decode, (self._last_s - self._first_s) / self._num_further)
