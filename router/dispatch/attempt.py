"""One attempt at a decode worker: its command, its timing, and the bounds on further ones."""

import time
from dataclasses import dataclass

from baton.protos import common_pb2
from baton.protos.worker_pb2 import GenerateCommand, PeerWorker, RequestDelta
from baton.router.errors import HandedOff, RequestLost, WorkerLost
from baton.router.generation import Generation
from baton.router.metrics.traffic import Traffic
from baton.router.policy.cluster import Plan, WorkerRole, WorkerSnapshot
from baton.rpc.requests import image_to_proto
from baton.rpc.status import Unavailable, error_from_code

RETRY_SHARE = 0.2  # retries per request
MAX_SAVED_RETRIES = 100.0


class RetryBudget:
    """Allowed retries of requests that busy workers refused: a share of all requests, saved up to a maximum.

    Without a budget, retries would keep busy workers overloaded (Finagle's retry budget, Twitter 2016).
    """

    def __init__(self) -> None:
        self._left = MAX_SAVED_RETRIES

    def note_request(self) -> None:
        """Count a request that is sent for the first time."""
        self._left = min(self._left + RETRY_SHARE, MAX_SAVED_RETRIES)

    def take(self) -> bool:
        """Take a retry if one is left; return whether there was one."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@dataclass(slots=True)
class Losses:
    """Losses in a row of workers that ran a request, without any output in between: the request may be their cause."""

    num_lost: int = 0
    _size: int = -1  # of the output, or of the rest of the request, at the last loss

    def note(self, size: int) -> None:
        """Count a loss; a change of `size` since the last one begins a new row."""
        self.num_lost = self.num_lost + 1 if size == self._size else 1
        self._size = size

    def last_error(self, error: Exception, num_failures: int) -> Exception:
        """Return the error for a request that is not sent again after `num_failures`, the last of them `error`."""
        if self.num_lost < max(num_failures, 2):
            return error if isinstance(error, WorkerLost) else WorkerLost(str(error))
        return RequestLost(
            f"the request was sent to {self.num_lost} workers in turn, and each of them was lost without further "
            f"output; the request may be the cause, and is not sent to another worker (the last one: {error})"
        )


class AttemptTimes:
    """Latencies of one attempt for the traffic statistics: TTFT of the prefill worker, TPOT of the decode worker.

    The TTFT counts only if the plan's prefill worker computed the prompt in the first attempt: after a failed handover
    the decode worker computes it itself.
    """

    def __init__(self, traffic: Traffic, plan: Plan, is_first: bool) -> None:
        self._traffic = traffic
        self._prefill = plan.prefill if is_first else None
        self._decode = plan.decode.incarnation
        self._sent_s = time.perf_counter()
        self._first_s: float | None = None
        self._last_s = 0.0
        self._num_further = 0  # tokens after the first delta with tokens

    def tokens(self, delta: RequestDelta) -> None:
        """Record the arrival of tokens. The first delta names the worker that computed the prompt."""
        self._last_s = time.perf_counter()
        if self._first_s is not None:
            self._num_further += len(delta.token_ids)
            return
        self._first_s = self._last_s
        if self._prefill is None or self._prefill.role is WorkerRole.BOTH:
            return  # a colocated worker reports only the TPOT of the requests that it decodes
        if self._prefill.worker_id == delta.served_by.prefill_worker:
            self._traffic.add_latency(self._prefill.incarnation, self._first_s - self._sent_s)

    def ended(self) -> None:
        """Report the TPOT: no more tokens arrive."""
        if self._first_s is not None and self._num_further:
            self._traffic.add_latency(self._decode, (self._last_s - self._first_s) / self._num_further)


def make_command(generation: Generation, index: int, plan: Plan, token_ids: list[int], attempt: int) -> GenerateCommand:
    """Return the command for one attempt. It has its own id, as the previous attempt may not have ended yet."""
    request = generation.request
    command = GenerateCommand(
        request_id=f"{request.request_id}-{index}-{attempt}",
        token_ids=token_ids,
        num_prompt_tokens=len(generation.token_ids),
        cache_salt=request.cache_salt,
        tenant=request.context.tenant,
        priority=request.context.priority,
        prefill=None if plan.prefill is None else _peer(plan.prefill),
        prefix_source=None if plan.prefix_source is None else _peer(plan.prefix_source),
        prefill_fallbacks=map(_peer, plan.prefill_fallbacks),
        resume_key=generation.resume_key(index),
        images=map(image_to_proto, generation.images),
        num_marked_tokens=generation.num_marked_tokens,
    )
    request.sampling_message.write(generation.completion_sampling(index), command.sampling)
    return command


def take_failure(delta: RequestDelta, worker: WorkerSnapshot) -> Exception | None:
    """Remove the failure from a delta and return it as an error; None if the request did not fail."""
    failure: Exception | None = None
    if delta.finish_reason == common_pb2.FINISH_REASON_HANDED_OFF:
        failure = HandedOff(f"decode worker {worker.worker_id} is draining and handed the request off")
    elif delta.finish_reason == common_pb2.FINISH_REASON_ERROR:
        failure = error_from_code(delta.error.code, delta.error.message)
    elif delta.finish_reason == common_pb2.FINISH_REASON_ABORT:
        failure = Unavailable(f"decode worker {worker.worker_id} aborted the request")
    if failure is not None:
        delta.ClearField("finish_reason")
        delta.ClearField("error")
    return failure


def _peer(worker: WorkerSnapshot) -> PeerWorker:
    return PeerWorker(worker_id=worker.worker_id, address=worker.address, incarnation=worker.incarnation)
