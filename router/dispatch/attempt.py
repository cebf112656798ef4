"""One attempt at a decode worker: its command, its timing, and what its output changes."""

import time

from baton.protos import common_pb2
from baton.protos.worker_pb2 import GenerateCommand, PeerWorker, RequestDelta
from baton.router.dispatch.progress import Progress
from baton.router.errors import HandedOff
from baton.router.generation import Generation
from baton.router.metrics.traffic import Traffic
from baton.router.policy.cluster import Plan, WorkerRole, WorkerSnapshot
from baton.router.workers.load import LoadShare
from baton.rpc.requests import image_to_proto
from baton.rpc.status import Unavailable, error_from_code


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


class AttemptRecord:
    """State that the output of one attempt changes: the completion's progress, its trace, its workers' load."""

    def __init__(self, plan: Plan, progress: Progress, share: LoadShare, times: AttemptTimes) -> None:
        self._plan = plan
        self._progress = progress
        self._share = share
        self._times = times
        self._is_computed = False  # the first token has arrived
        self._num_skipped = progress.num_prompt_logprobs  # positions that this attempt reports again

    def note(self, delta: RequestDelta) -> None:
        """Record a delta, and remove prompt logprobs from it that an earlier attempt has reported."""
        progress = self._progress
        if progress.trace is not None:
            progress.trace.note(delta)
        if delta.token_ids:
            if not self._is_computed:
                self._share.computed()
                self._is_computed = True
            self._times.tokens(delta)
            progress.token_ids.extend(delta.token_ids)
        if delta.token_ids or delta.prompt_logprobs:
            progress.fingerprint = self._plan.decode.fingerprint
        if delta.prompt_logprobs:
            num_old = min(self._num_skipped, len(delta.prompt_logprobs))
            self._num_skipped -= num_old
            del delta.prompt_logprobs[:num_old]
            progress.num_prompt_logprobs += len(delta.prompt_logprobs)

    def end(self) -> None:
        """Record that no more output arrives."""
        self._share.remove()
        self._times.ended()
        if self._progress.trace is not None:
            self._progress.trace.closed()


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
        adapter="" if request.adapter is None else request.adapter.name,
        adapter_digest="" if request.adapter is None else request.adapter.digest,
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
