"""The one table from errors to gRPC codes and HTTP statuses, and the errors that services raise themselves.

ServiceError
├── Unauthenticated   who asks is not known
├── NotFound          there is no such model, request or worker
├── Unavailable       nobody can serve this now (draining, no worker, connection lost); the same request may work soon
├── Conflict          another call has taken what this one is about, or the two contradict each other
├── Cancelled         the caller ended it
├── DeadlineExceeded  the time that the caller gave, or the server gives, was over before the end
└── Internal          it failed here, and the request was not to blame
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

# A caller's own words come back in some texts, and gRPC carries a text in a header: none may be larger than 8 KiB.
MAX_MESSAGE_CHARS = 800


class ServiceError(Exception):
    """Root of the errors that services raise themselves."""


class Unauthenticated(ServiceError):
    """Who asks has not shown a key that is known; the text repeats nothing that was shown."""


class NotFound(ServiceError):
    """There is no such model, request or worker; the text names it."""


class Unavailable(ServiceError):
    """Nobody can serve this now; the same request may work soon."""


class Conflict(ServiceError):
    """Another call has taken what this one is about, or the two contradict each other."""


class Cancelled(ServiceError):
    """The caller ended it."""


class DeadlineExceeded(ServiceError):
    """The time that the caller gave, or the server gives, was over before the end."""


class Internal(ServiceError):
    """It failed here, and the request was not to blame."""


@dataclass(frozen=True, slots=True)
class Status:
    """How an error is told over gRPC and over HTTP (`kind` is OpenAI's `error.type`)."""

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

# The other way: what a peer's code is raised as here.
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
    """The status of an error: that of its class or of the nearest base in the table, else internal."""
    return next((_TABLE[base] for base in type(error).__mro__ if base in _TABLE), _INTERNAL)


def message_of(error: BaseException) -> str:
    """What the caller is told: of a failing of our own nothing but that there was one."""
    if status_of(error).http == 500 and not isinstance(error, ServiceError):
        return "internal error; the server's log has the details"
    return shortened(str(error))


def shortened(text: str) -> str:
    """A text for a caller, cut if it is far too long."""
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}..."


def code_number(error: BaseException) -> int:
    """The error's google.rpc.Code, as it stands in a `RequestError`."""
    number: int = status_of(error).code.value[0]
    return number


def error_from_code(number: int, message: str) -> Exception:
    """The error that a peer's google.rpc.Code stands for; `Internal` for codes without a class of their own."""
    code = _CODES.get(number, StatusCode.UNKNOWN)
    return _RAISED.get(code, Internal)(message)
