"""Period in which a request receives no new token: the failures so far, and the time left to retry."""

import random
import time
from dataclasses import dataclass

import httpx

LONGEST_DELAY_S = 5.0  # between two attempts, unless a router asks for more


@dataclass(frozen=True, slots=True)
class ResumePolicy:
    """Limits of a transport's retries."""

    max_outage_s: float = 60.0  # from a failure to the next new token
    silence_s: float = 5.0  # without a byte on a stream
    first_delay_s: float = 0.2  # upper bound of the first random delay; doubles each round

    def __post_init__(self) -> None:
        if self.max_outage_s < 0 or self.silence_s <= 0 or self.first_delay_s < 0:
            raise ValueError(f"times must be positive: {self}")


class Outage:
    """Failures of one request since its last new token."""

    def __init__(self, policy: ResumePolicy) -> None:
        self.num_losses = 0
        self.delay_s = 0.0  # before the next attempt
        self._policy = policy
        self._since_s: float | None = None  # time of the first failure; None: no failure
        self._first_error: httpx.TransportError | None = None

    def has_time(self, wait_s: float = 0.0) -> bool:
        """Whether an attempt after `wait_s` would still be within `max_outage_s`."""
        return self._elapsed_s() + wait_s <= self._policy.max_outage_s

    def count(self, num_routers: int, wait_s: float = 0.0, error: httpx.TransportError | None = None) -> None:
        """Count a failure and set the next delay, which grows with each round over all routers."""
        if self._since_s is None:
            self._since_s = time.monotonic()
        self._first_error = self._first_error or error
        num_rounds = min(self.num_losses // num_routers, 30)
        longest_s = min(LONGEST_DELAY_S, self._policy.first_delay_s * 2**num_rounds)
        self.delay_s = wait_s + random.uniform(0, longest_s)
        self.num_losses += 1

    def end(self) -> None:
        """Reset after a new token."""
        self.num_losses = 0
        self.delay_s = 0.0
        self._since_s = self._first_error = None

    def error(self, latest: str) -> httpx.TransportError:
        """Return the final error of a request: the first failure's type and text, the number of failures, the latest.

        `latest` describes the latest failure.
        """
        first = self._first_error or httpx.RemoteProtocolError("the router failed")
        attempts = f"gave up after {self.num_losses} failures in {self._elapsed_s():.1f} s"
        return type(first)(f"{first or type(first).__name__}; {attempts}, the latest {latest}")

    def _elapsed_s(self) -> float:
        return 0.0 if self._since_s is None else time.monotonic() - self._since_s
