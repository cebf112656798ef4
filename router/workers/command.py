"""What a decode worker is told of a choice, and how it says that it failed."""

from baton.protos import common_pb2
from baton.protos.worker_pb2 import GenerateCommand, PeerWorker, RequestDelta
from baton.router.errors import HandedOff
from baton.router.generation import Generation
from baton.router.policy.cluster import Plan, WorkerSnapshot
from baton.rpc.sampling import sampling_to_proto
from baton.rpc.status import Unavailable, error_from_code


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
