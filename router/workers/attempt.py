"""One attempt at a decode worker: its command, its timing, and the budget of further attempts."""

import time

from baton.protos import common_pb2
from baton.protos.worker_pb2 import GenerateCommand, PeerWorker, RequestDelta
from baton.router.errors import HandedOff
from baton.router.generation import Generation
from baton.router.metrics.traffic import Traffic
from baton.router.policy.cluster import Plan, WorkerRole, WorkerSnapshot
from baton.rpc.requests import sampling_to_proto
from baton.rpc.status import Unavailable, error_from_code

RETRY_SHARE = 0.2  # retries per request
MAX_SAVED_RETRIES = 100.0


class RetryBudget:
    """Retries allowed for requests that busy workers refused: a share of all requests, saved up to a bound.

    Without it retries would keep busy workers busy (the retry budget of Finagle, Twitter 2016).
    """

    def __init__(self) -> None:
        self._left = MAX_SAVED_RETRIES

    def note_request(self) -> None:
        """Count a request that is sent for the first time."""
        self._left = min(self._left + RETRY_SHARE, MAX_SAVED_RETRIES)

    def take(self) -> bool:
        """Return whether a request may be sent again, and count the retry if so."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


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


def make_command(generation: Generation, index: int, plan: Plan, token_ids: list[int], attempt: int) -> GenerateCommand:
    """The command for one attempt at a choice, under an id of its own: the last attempt may not have ended yet."""
    request = generation.request
    return GenerateCommand(
        request_id=f"{request.request_id}-{index}-{attempt}",
        token_ids=token_ids,
        num_prompt_tokens=len(generation.token_ids),
        sampling=sampling_to_proto(generation.choice_sampling(index)),
        cache_salt=request.cache_salt,
        priority=request.context.priority,
        prefill=None if plan.prefill is None else _peer(plan.prefill),
        prefix_source=None if plan.prefix_source is None else _peer(plan.prefix_source),
        prefill_fallbacks=map(_peer, plan.prefill_fallbacks),
        resume_key=generation.resume_key(index),
    )


def take_failure(delta: RequestDelta, worker: WorkerSnapshot) -> Exception | None:
    """What a delta says of the request's failure, taken out of it; None if it did not fail."""
    failure: Exception | None = None
    if delta.finish_reason == common_pb2.FINISH_REASON_HANDED_OFF:
        failure = HandedOff(f"decode worker {worker.worker_id} drains, and gave the request away")
    elif delta.finish_reason == common_pb2.FINISH_REASON_ERROR:
        failure = error_from_code(delta.error.code, delta.error.message)
    elif delta.finish_reason == common_pb2.FINISH_REASON_ABORT:
        failure = Unavailable(f"decode worker {worker.worker_id} gave the request up")
    if failure is not None:
        delta.ClearField("finish_reason")
        delta.ClearField("error")
    return failure


def _peer(worker: WorkerSnapshot) -> PeerWorker:
    return PeerWorker(worker_id=worker.worker_id, address=worker.address, incarnation=worker.incarnation)
