"""Errors of the router, below the engine's InvalidRequest and QueueFull.

InvalidRequest (engine/errors.py)
└── FieldError   a field of the request is invalid
    └── ContextExceeded   prompt and output do not fit the model's context
QueueFull (engine/errors.py)
└── Overloaded   the router is overloaded; the client may retry later
    └── KeyLimitReached   the client's API key has reached a limit
Unavailable (rpc/status.py)
├── NoWorker     no worker can serve the request now
├── WorkerLost   the worker of the request was lost
├── HandedOff    the worker of the request is draining and handed it off
├── ShortOfRanks the worker of the request waits for ranks of its group, and another can continue it
└── Draining     the router is shutting down
NotFound (rpc/status.py)
└── PinNotFound  there is no such pin
Internal (rpc/status.py)
└── RequestLost  each worker that ran the request was lost, so the request may be the cause
Conflict (rpc/status.py)
└── ResumeFailed the output of a resumed request differs from what its client received
Cancelled (rpc/status.py)
└── SlowClient   the client does not read its output
"""

import math
from dataclasses import dataclass
from types import TracebackType

from baton.engine.errors import InvalidRequest, QueueFull
from baton.rpc.status import Cancelled, Conflict, Internal, NotFound, Unavailable

MAX_RETRY_AFTER_S = 600


class FieldError(InvalidRequest):
    """A field of the request is invalid; `field` is its name in the API."""

    def __init__(self, field: str, message: str, code: str | None = None) -> None:
        """`code`: OpenAI's `error.code`, if there is one for this error."""
        super().__init__(message)
        self.field = field
        self.code = code


class ContextExceeded(FieldError):
    """Prompt and output do not fit the model's context; the numbers are for APIs with their own wording."""

    def __init__(
        self, field: str, message: str, code: str, *, max_model_len: int, num_tokens: int, num_output_tokens: int
    ) -> None:
        """`num_tokens`: of the prompt. `num_output_tokens`: 0: the prompt does not fit, whatever the output."""
        super().__init__(field, message, code)
        self.max_model_len = max_model_len
        self.num_tokens = num_tokens
        self.num_output_tokens = num_output_tokens


class Overloaded(QueueFull):
    """The router is overloaded; a retry after `retry_after_s`, in whole seconds, should succeed."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(f"{message}; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s

    @classmethod
    def after(cls, wait_s: float | None, message: str) -> "Overloaded":
        """Return the error for an expected wait; None: unknown. A client is to retry within `MAX_RETRY_AFTER_S`."""
        return cls(message, 1 if wait_s is None else min(MAX_RETRY_AFTER_S, max(1, math.ceil(wait_s))))


class KeyLimitReached(Overloaded):
    """The client's API key has reached a limit; `kind` is OpenAI's error type, `requests` or `tokens`."""

    def __init__(self, message: str, retry_after_s: int, kind: str) -> None:
        super().__init__(message, retry_after_s)
        self.kind = kind


class PinNotFound(NotFound):
    """There is no such pin, or it belongs to another tenant."""


class NoWorker(Unavailable):
    """No worker can serve the request now; the message says what is missing."""


class WorkerLost(Unavailable):
    """The worker of the request has ended, or the connection to it broke."""


class HandedOff(Unavailable):
    """The worker of the request is draining and handed it off; its cache still has the KV."""


class ShortOfRanks(Unavailable):
    """The worker of the request waits for ranks of its group, and another worker can continue the request."""


class Draining(Unavailable):
    """The router is shutting down: it rejects new requests, and running ones have exceeded the drain timeout."""


class RequestLost(Internal):
    """Each worker that ran the request was lost. It may have ended them, so clients should not send it again."""


class ResumeFailed(Conflict):
    """The output of a resumed request differs from what its client received, so the stream cannot continue."""


class SlowClient(Cancelled):
    """The client reads its output too slowly, or left too much of it in the router's memory."""


@dataclass(frozen=True, slots=True)
class PanicsAs:
    """Context manager that converts a panic of a Rust library to an error."""

    error: type[Exception]
    message: str

    def __enter__(self) -> None:
        """No-op."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and is_panic(error):
            raise self.error(self.message) from None


def is_panic(error: BaseException) -> bool:
    """Return whether the error is a Rust panic. Each pyo3 library has its own class for them, all with this name."""
    return type(error).__name__ == "PanicException"


# The client's error, as the same text would fail again: after a server error the client would only retry.
INPUT_PANICS = PanicsAs(InvalidRequest, "the model's tokenizer failed on this text or these tokens")
OUTPUT_PANICS = PanicsAs(Internal, "the model's tokenizer failed on the generated tokens")
REQUEST_PANICS = PanicsAs(Internal, "a library failed on the request; see the server's log")
