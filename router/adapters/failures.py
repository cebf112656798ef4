"""Failures to load adapters, and when to try again."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

FIRST_WAIT_S = 2.0  # after a failure; twice as long after each further one with the same reason
LAST_WAIT_S = 300.0
ALL = ""  # instead of an incarnation: all workers


@dataclass(slots=True)
class Failure:
    """The last failure to load an adapter at one incarnation of a worker, or at all workers."""

    reason: str
    retry_s: float  # time from which it is tried again
    wait_s: float


class LoadFailures:
    """Failures by incarnation of the worker and name of the adapter."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[tuple[str, str], Failure] = {}

    def reason(self, name: str, incarnation: str = ALL) -> str | None:
        """Return the reason of the last failure; None if it is time to try again, or if there was none."""
        failure = self._failures.get((incarnation, name))
        return failure.reason if failure is not None and self._clock() < failure.retry_s else None

    def last_reason(self, name: str) -> str | None:
        """Return the reason of the last failure at all workers, however long ago; None: there was none."""
        failure = self._failures.get((ALL, name))
        return None if failure is None else failure.reason

    def note(self, name: str, reason: str, incarnation: str = ALL) -> bool:
        """Note a failure; return whether its reason is new."""
        last = self._failures.get((incarnation, name))
        is_new = last is None or last.reason != reason
        wait_s = FIRST_WAIT_S if last is None or is_new else min(2 * last.wait_s, LAST_WAIT_S)
        self._failures[incarnation, name] = Failure(reason, self._clock() + wait_s, wait_s)
        return is_new

    def forget(self, name: str, incarnation: str = ALL) -> None:
        """Forget a failure: the adapter was loaded, or is to be loaded now."""
        self._failures.pop((incarnation, name), None)

    def clean(self, incarnations: Collection[str], names: Collection[str]) -> None:
        """Keep failures at these incarnations, and those at all workers of these names or of a short while ago."""
        now_s = self._clock()
        self._failures = {
            (incarnation, name): failure
            for (incarnation, name), failure in self._failures.items()
            if incarnation in incarnations or (incarnation == ALL and (name in names or now_s < failure.retry_s))
        }
