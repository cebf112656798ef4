"""Errors of the router, beside the engine's InvalidRequest and QueueFull.

InvalidRequest (engine/errors.py)
└── FieldError   a field of the request cannot be served as it is
QueueFull (engine/errors.py)
└── Overloaded   the router has too much to do; it says when to come back
    └── KeyLimitReached   the client's API key has used up what it may
Unavailable (rpc/status.py)
├── NoWorker     no worker can serve the request now
├── WorkerLost   the worker that had the request is gone
├── HandedOff    the worker that had the request drains, and gave it away
└── Draining     the router takes no new requests, and has no more time for running ones
Conflict (rpc/status.py)
└── ResumeFailed the output of a resumed request is not what its client has of it
Cancelled (rpc/status.py)
└── SlowClient   the client does not take its output
"""

from dataclasses import dataclass
from types import TracebackType

from baton.engine.errors import InvalidRequest, QueueFull
from baton.rpc.status import Cancelled, Conflict, Internal, Unavailable


class FieldError(InvalidRequest):
    """A field of the request cannot be served as it is; `field` is its name in the API."""

    def __init__(self, field: str, message: str, code: str | None = None) -> None:
        """`code`: OpenAI's `error.code`, if it has one for this error."""
        super().__init__(message)
        self.field = field
        self.code = code


class Overloaded(QueueFull):
    """The router has too much to do; after `retry_after_s`, whole seconds, there should be room."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(f"{message}; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class KeyLimitReached(Overloaded):
    """The client's API key has used up what it may: of `kind`, `requests` or `tokens` as OpenAI's error type has it."""

    def __init__(self, message: str, retry_after_s: int, kind: str) -> None:
        super().__init__(message, retry_after_s)
        self.kind = kind


class NoWorker(Unavailable):
    """No worker can serve the request now; the text says what is missing."""


class WorkerLost(Unavailable):
    """The worker that had the request is gone, or the connection to it broke."""


class HandedOff(Unavailable):
    """The worker that had the request drains, and gave it away in order: its cache has the KV."""


class Draining(Unavailable):
    """The router is shutting down: it takes no new requests, and has no more time for running ones."""


class ResumeFailed(Conflict):
    """The output of a resumed request is not what its client has of it, so that nothing can follow that."""


class SlowClient(Cancelled):
    """The client took too little of its output, or left too much of it in the router's memory."""


@dataclass(frozen=True, slots=True)
class PanicsAs:
    """A context in which a panic becomes this error."""

    error: type[Exception]
    message: str

    def __enter__(self) -> None:
        """Nothing to begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and is_panic(error):
            raise self.error(self.message) from None


def is_panic(error: BaseException) -> bool:
    """Whether it is one: each library has a class of its own for them, all of this name."""
    return type(error).__name__ == "PanicException"


# The same text would fail again: a client that is told of a failing of the server's would only ask again.
INPUT_PANICS = PanicsAs(InvalidRequest, "the model's tokenizer cannot take this text or these tokens: it broke off")
OUTPUT_PANICS = PanicsAs(Internal, "the model's tokenizer broke off at the generated tokens")
REQUEST_PANICS = PanicsAs(Internal, "a library that the request needs broke off; the server's log has its words")
