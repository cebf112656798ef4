"""The state of a batch, as it is stored and as clients see it."""

import secrets
from dataclasses import asdict, dataclass, field
from typing import Literal

import orjson
from pydantic import TypeAdapter

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
Outcome = Literal["failed", "completed", "expired", "cancelled"]
ENDED: frozenset[Status] = frozenset(("failed", "completed", "expired", "cancelled"))


def new_batch_id() -> str:
    """Return a random id."""
    return f"batch_{secrets.token_hex(16)}"


@dataclass(frozen=True, slots=True)
class BatchError:
    """Why a batch failed."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None  # of the input, from 1


@dataclass(slots=True, kw_only=True)
class BatchRecord:
    """One batch; times in Unix seconds. Only the router that owns the batch changes it."""

    id: str
    key_name: str | None  # of the API key that created it; None: no key was needed
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    metadata: dict[str, str] | None = None
    output_expires_s: int | None = None  # after the creation of the output files; None: they are kept
    status: Status = "validating"
    outcome: Outcome | None = None  # the status that follows on finalizing
    errors: list[BatchError] = field(default_factory=list)
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelled_at: int | None = None
    num_lines: int = 0
    num_completed: int = 0
    num_failed: int = 0

    def end(self, outcome: Outcome, now_s: int) -> None:
        """Set the final status."""
        self.status = outcome
        match outcome:
            case "completed":
                self.completed_at = now_s
            case "failed":
                self.failed_at = now_s
            case "expired":
                self.expired_at = now_s
            case "cancelled":
                self.cancelled_at = now_s

    def encoded(self) -> bytes:
        """Return the record as it is stored."""
        return orjson.dumps(asdict(self))

    def body(self, cancelling_at: int | None) -> dict[str, object]:
        """Return OpenAI's batch object. `cancelling_at`: when a client cancelled the batch."""
        has_ended = self.status in ENDED
        errors = [asdict(error) for error in self.errors]
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": errors} if errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": "cancelling" if cancelling_at is not None and not has_ended else self.status,
            "output_file_id": self.output_file_id if has_ended else None,
            "error_file_id": self.error_file_id if has_ended else None,
            "created_at": self.created_at,
            "in_progress_at": self.in_progress_at,
            "expires_at": self.expires_at,
            "finalizing_at": self.finalizing_at,
            "completed_at": self.completed_at,
            "failed_at": self.failed_at,
            "expired_at": self.expired_at,
            "cancelling_at": cancelling_at,
            "cancelled_at": self.cancelled_at,
            "request_counts": {
                "total": self.num_lines,
                "completed": self.num_completed,
                "failed": self.num_failed,
            },
            "metadata": self.metadata,
        }


_ADAPTER = TypeAdapter(BatchRecord)


def decode(content: bytes) -> BatchRecord:
    """Return a stored record. Raises ValueError."""
    return _ADAPTER.validate_json(content)
