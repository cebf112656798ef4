"""One worker as a request finds it: the times that all plans with it share."""

from dataclasses import dataclass
from math import ceil

from baton.router.policy.cluster import RoutedRequest, WorkerSnapshot
from baton.router.policy.rates import WorkerRates


@dataclass(slots=True)
class WorkerTimes:
    """Seconds, and what they follow from; made once for each worker and request."""

    worker: WorkerSnapshot
    rates: WorkerRates
    missing: int  # tokens of the prompt that the worker lacks
    num_step_tokens: int  # most of a step
    num_running: int  # sequences that will soon run, if not now
    step_s: float  # of a step that decodes those
    queue_s: float  # until the prompts that the worker has are computed, and at least half of a step under way
    room_s: float  # until enough sequences have ended for a place in the batch and blocks for the prompt

    @classmethod
    def of(
        cls, request: RoutedRequest, worker: WorkerSnapshot, rates: WorkerRates, num_step_tokens: int, num_output: int
    ) -> "WorkerTimes":
        """`num_step_tokens`: of a worker that does not say it; sequences end after `num_output` tokens each."""
        num_step_tokens = worker.max_num_batched_tokens or num_step_tokens
        missing = request.missing_tokens(worker)
        num_running = worker.num_requests
        if not num_running:
            return cls(worker, rates, missing, num_step_tokens, 0, rates.decode_step_s, 0.0, 0.0)
        if worker.max_num_seqs and num_running > worker.max_num_seqs:
            num_running = worker.max_num_seqs
        step_s = rates.decode_step_s + rates.decode_sequence_s * (num_running - 1)
        queued = worker.num_queued_tokens
        queue_s = queued / rates.prefill_tokens_per_s + max(0.5, queued / num_step_tokens) * step_s
        room_s = num_ends_needed(request, worker, num_running) * num_output * step_s / num_running
        return cls(worker, rates, missing, num_step_tokens, num_running, step_s, queue_s, room_s)


def num_ends_needed(request: RoutedRequest, worker: WorkerSnapshot, num_running: int) -> float:
    """How many of the running sequences have to end before the request has a place and its blocks."""
    num_ends = 0.0
    if worker.max_num_seqs:
        num_ends = float(max(0, worker.num_requests + 1 - worker.max_num_seqs))
    lacking = ceil(request.num_tokens / worker.block_size) - worker.num_free_blocks
    if lacking > 0 and worker.num_blocks > worker.num_free_blocks:
        blocks_each = (worker.num_blocks - worker.num_free_blocks) / num_running
        num_ends = max(num_ends, lacking / blocks_each)
    return num_ends
