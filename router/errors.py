"""Errors of the router, beside the engine's InvalidRequest and QueueFull.

Unavailable (rpc/status.py)
├── NoWorker     no worker can serve the request now
├── WorkerLost   the worker that had the request is gone
└── Draining     the router takes no new requests
"""

from rpc.status import Unavailable


class NoWorker(Unavailable):
    """No worker can serve the request now; the text says what is missing."""


class WorkerLost(Unavailable):
    """The worker that had the request is gone, or the connection to it broke."""


class Draining(Unavailable):
    """The router takes no new requests."""
