"""The request that a task works on, which its lines in the log name."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_REQUEST_ID = ContextVar("request_id", default="")  # inherited by the tasks that a task creates


def current_request() -> str:
    """Return the id of the request that the running task works on; empty: none."""
    return _REQUEST_ID.get()


def enter_request(request_id: str) -> None:
    """Work on a request until the end of this task."""
    _REQUEST_ID.set(request_id)


@contextmanager
def request_scope(request_id: str) -> Iterator[None]:
    """Work on a request during a `with` block, and in all tasks and callbacks that are created there."""
    token = _REQUEST_ID.set(request_id)
    try:
        yield
    finally:
        _REQUEST_ID.reset(token)
