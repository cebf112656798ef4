"""Errors of the router, beside the engine's InvalidRequest and QueueFull.

InvalidRequest (engine/errors.py)
└── FieldError   a field of the request cannot be served as it is
Unavailable (rpc/status.py)
├── NoWorker     no worker can serve the request now
├── WorkerLost   the worker that had the request is gone
└── Draining     the router takes no new requests, and has no more time for running ones
"""

from engine.errors import InvalidRequest
from rpc.status import Unavailable


class FieldError(InvalidRequest):
    """A field of the request cannot be served as it is; `field` is its name in the API."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class NoWorker(Unavailable):
    """No worker can serve the request now; the text says what is missing."""


class WorkerLost(Unavailable):
    """The worker that had the request is gone, or the connection to it broke."""


class Draining(Unavailable):
    """The router is shutting down: it takes no new requests, and has no more time for running ones."""
