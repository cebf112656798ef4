"""Acceptance of workers: reasons for which a router refuses a worker that it has reached."""

from dataclasses import dataclass

from baton.membership.registry.router_report import MAX_BLOCK_SIZE
from baton.protos.worker_pb2 import WorkerDescription
from baton.router.workers.worker_models import WorkerModels
from baton.settings.names import NAME_RULE, is_name

MAX_SHOWN_CHARS = 100


@dataclass(frozen=True, slots=True)
class Objection:
    """A reason against a worker, and whether it is used nevertheless."""

    reason: str
    is_used: bool = False


def objection_to(
    found: WorkerDescription, model: str, models: WorkerModels, vocabulary: str, *, is_fixed: bool
) -> Objection | None:
    """Return what is wrong with a worker for the pool of `model`; None: nothing.

    vocabulary: digest of the router's tokenizer, empty for any; is_fixed: the worker's address was given to this
    router, which may serve its model under another name.
    """
    if not is_name(found.worker_id):
        return Objection(f"its id {found.worker_id[:MAX_SHOWN_CHARS]!r} must be {NAME_RULE}")
    if not 0 < found.block_size <= MAX_BLOCK_SIZE or found.max_model_len < 1:
        return Objection(f"it has blocks of {found.block_size} and contexts of {found.max_model_len} tokens")
    is_named_otherwise = found.model != model
    is_used = not is_named_otherwise or (is_fixed and len(models.names) == 1)
    if is_used and vocabulary and found.vocabulary not in ("", vocabulary):
        return Objection(
            f"its tokenizer has other tokens than this router's (vocabulary "
            f"{found.vocabulary[:MAX_SHOWN_CHARS]!r}, not {vocabulary!r}); start both with the same --tokenizer"
        )
    return Objection(f"it serves {found.model}, not {models}", is_used) if is_named_otherwise else None
