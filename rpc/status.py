"""The table from errors to gRPC codes and HTTP statuses, and the errors that services raise.

ServiceError
├── Unauthenticated   the caller's API key is missing or unknown
├── PermissionDenied  the caller's API key may not do this
├── NotFound          no such model, request or worker
├── Unavailable       the request cannot be served now (draining, no worker, connection lost); a retry may succeed
├── Conflict          another call has taken over the object of this one, or the two contradict each other
├── Cancelled         the caller cancelled the request
├── DeadlineExceeded  the caller's or the server's time limit has passed
└── Internal          the server failed; the request was valid
"""

from dataclasses import dataclass

from grpc import StatusCode

from baton.engine.errors import EngineEnded, EngineError, InvalidRequest, QueueFull, UnsupportedModel
from baton.kvtransfer.errors import (
    ChecksumMismatch,
    PeerLost,
    PeerRefused,
    TransferDeadline,
    TransferError,
    TransportUnavailable,
)

# Some texts repeat the caller's input, and gRPC sends texts in a header, which is limited to 8 KiB.
MAX_MESSAGE_CHARS = 800


class ServiceError(Exception):
    """Base of the errors that services raise."""


class Unauthenticated(ServiceError):
    """The caller's API key is missing or unknown; the text never repeats the key."""


class PermissionDenied(ServiceError):
    """The caller's API key is known, but may not do this."""


class NotFound(ServiceError):
    """No such model, request or worker; the text names it."""


class Unavailable(ServiceError):
    """The request cannot be served now; a retry may succeed."""


class Conflict(ServiceError):
    """Another call has taken over the object of this one, or the two contradict each other."""


class Cancelled(ServiceError):
    """The caller cancelled the request."""


class DeadlineExceeded(ServiceError):
    """The caller's or the server's time limit has passed."""


class Internal(ServiceError):
    """The server failed; the request was valid."""


@dataclass(frozen=True, slots=True)
class Status:
    """An error's gRPC code, HTTP status, and `kind`, which is OpenAI's `error.type`."""

    code: StatusCode
    http: int
    kind: str


_INTERNAL = Status(StatusCode.INTERNAL, 500, "internal_server_error")

_TABLE: dict[type[BaseException], Status] = {
    InvalidRequest: Status(StatusCode.INVALID_ARGUMENT, 400, "invalid_request_error"),
    QueueFull: Status(StatusCode.RESOURCE_EXHAUSTED, 429, "rate_limit_error"),
    UnsupportedModel: Status(StatusCode.UNIMPLEMENTED, 501, "invalid_request_error"),
    EngineEnded: Status(StatusCode.UNAVAILABLE, 503, "service_unavailable_error"),
    EngineError: _INTERNAL,
    Unauthenticated: Status(StatusCode.UNAUTHENTICATED, 401, "invalid_request_error"),
    PermissionDenied: Status(StatusCode.PERMISSION_DENIED, 403, "permission_error"),
    NotFound: Status(StatusCode.NOT_FOUND, 404, "invalid_request_error"),
    Unavailable: Status(StatusCode.UNAVAILABLE, 503, "service_unavailable_error"),
    Conflict: Status(StatusCode.ABORTED, 409, "conflict_error"),
    Cancelled: Status(StatusCode.CANCELLED, 499, "request_cancelled"),
    DeadlineExceeded: Status(StatusCode.DEADLINE_EXCEEDED, 504, "timeout_error"),
    Internal: _INTERNAL,
    PeerRefused: Status(StatusCode.FAILED_PRECONDITION, 409, "internal_server_error"),
    TransportUnavailable: Status(StatusCode.FAILED_PRECONDITION, 409, "internal_server_error"),
    PeerLost: Status(StatusCode.UNAVAILABLE, 503, "service_unavailable_error"),
    TransferDeadline: Status(StatusCode.DEADLINE_EXCEEDED, 504, "service_unavailable_error"),
    ChecksumMismatch: Status(StatusCode.DATA_LOSS, 500, "internal_server_error"),
    TransferError: _INTERNAL,
}

# The reverse: the error to raise for a peer's code.
_RAISED: dict[StatusCode, type[Exception]] = {
    StatusCode.INVALID_ARGUMENT: InvalidRequest,
    StatusCode.RESOURCE_EXHAUSTED: QueueFull,
    StatusCode.NOT_FOUND: NotFound,
    StatusCode.UNAVAILABLE: Unavailable,
    StatusCode.ABORTED: Conflict,
    StatusCode.CANCELLED: Cancelled,
    StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
}
_CODES: dict[int, StatusCode] = {code.value[0]: code for code in StatusCode}


def status_of(error: BaseException) -> Status:
    """Return the status of the error's class or nearest base in the table; internal by default."""
    return next((_TABLE[base] for base in type(error).__mro__ if base in _TABLE), _INTERNAL)


def message_of(error: BaseException) -> str:
    """Return the message for the caller; it gives no details of internal errors."""
    if status_of(error).http == 500 and not isinstance(error, ServiceError):
        return "internal error; the server's log has the details"
    return shortened(str(error))


def shortened(text: str) -> str:
    """Return the text, cut to MAX_MESSAGE_CHARS."""
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}..."


def code_number(error: BaseException) -> int:
    """Return the error's google.rpc.Code, as in a `RequestError`."""
    number: int = status_of(error).code.value[0]
    return number


def error_from_code(number: int, message: str) -> Exception:
    """Return the error for a peer's google.rpc.Code; `Internal` for codes without a class."""
    code = _CODES.get(number, StatusCode.UNKNOWN)
    return _RAISED.get(code, Internal)(message)
