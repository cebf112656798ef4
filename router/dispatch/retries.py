"""Bounds on the retries of a request: their number, a budget for refusals, and workers lost in a row."""

from dataclasses import dataclass

from baton.router.errors import RequestLost, WorkerLost

RETRY_SHARE = 0.2  # retries per request
MAX_SAVED_RETRIES = 100.0


class RetryBudget:
    """Allowed retries of requests that busy workers refused: a share of all requests, saved up to a maximum.

    Without a budget, retries would keep busy workers overloaded (Finagle's retry budget, Twitter 2016).
    """

    def __init__(self) -> None:
        self._left = MAX_SAVED_RETRIES

    def note_request(self) -> None:
        """Count a request that is sent for the first time."""
        self._left = min(self._left + RETRY_SHARE, MAX_SAVED_RETRIES)

    def take(self) -> bool:
        """Take a retry if one is left; return whether there was one."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@dataclass(frozen=True, slots=True)
class FailoverLimits:
    """Limits on retries of a request whose worker was lost."""

    attempts: int  # maximum retries
    timeout_s: float  # maximum wait for a worker before each retry


@dataclass(slots=True)
class Losses:
    """Losses in a row of workers that ran a request, without any output in between: the request may be their cause."""

    num_lost: int = 0
    _size: int = -1  # of the output, or of the rest of the request, at the last loss

    def note(self, size: int) -> None:
        """Count a loss; a change of `size` since the last one begins a new row."""
        self.num_lost = self.num_lost + 1 if size == self._size else 1
        self._size = size

    def last_error(self, error: Exception, num_failures: int) -> Exception:
        """Return the error for a request that is not sent again after `num_failures`, the last of them `error`."""
        if self.num_lost < max(num_failures, 2):
            return error if isinstance(error, WorkerLost) else WorkerLost(str(error))
        return RequestLost(
            f"the request was sent to {self.num_lost} workers in turn, and each of them was lost without further "
            f"output; the request may be the cause, and is not sent to another worker (the last one: {error})"
        )
