"""Bodies of responses for /openapi.json."""

from typing import Literal

from typing_extensions import TypedDict

from baton.router.batches.record import Status


class LineProblem(TypedDict):
    """Why a batch failed."""

    code: str
    message: str
    param: str | None
    line: int | None


class ProblemList(TypedDict):
    """Why a batch failed, line by line."""

    object: Literal["list"]
    data: list[LineProblem]


class RequestCounts(TypedDict):
    """Requests of a batch."""

    total: int
    completed: int
    failed: int


class BatchObject(TypedDict):
    """A batch; times in Unix seconds."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: ProblemList | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(TypedDict):
    """A page of batches."""

    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
