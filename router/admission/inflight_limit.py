"""How many choices may be in flight: as many as the workers run, and some more so that none of them runs dry."""

import math
from typing import Protocol

LOOK_INTERVAL_S = 0.1  # how old the known capacity of the workers may be
MIN_MARGIN = 8  # choices
MARGIN_SHARE = 4  # the margin is this part of the workers' capacity


class Capacity(Protocol):
    """What the workers can do."""

    def num_seqs(self) -> int | None:
        """Choices that the decode workers run at once; 0: no worker is ready; None: a worker does not say."""
        ...

    async def wait_change(self, timeout_s: float) -> None:
        """Returns when a worker came or went, or after the time-out. Raises Unavailable once the router ends."""
        ...


class InflightLimit:
    """Owns what is known of the workers' capacity, which is looked up now and then: there may be a thousand workers."""

    def __init__(self, max_inflight: int, capacity: Capacity) -> None:
        self.max_inflight = max_inflight  # whatever the workers can do
        self._capacity = capacity
        self._num_seqs: int | None = None
        self._looked_s = -math.inf
        self._no_worker_since_s: float | None = None

    def at(self, now_s: float, max_margin: float = math.inf) -> int:
        """Choices in flight from which on further ones wait. Without a worker none waits: it is told so at once.

        `max_margin`: most choices beyond the workers' capacity.
        """
        if now_s - self._looked_s > LOOK_INTERVAL_S:
            self.look(now_s)
        if not self._num_seqs:
            return self.max_inflight
        margin = min(max(MIN_MARGIN, self._num_seqs // MARGIN_SHARE), max_margin)
        return min(self.max_inflight, self._num_seqs + int(margin))

    def look(self, now_s: float) -> None:
        """Looks up what the workers can do."""
        self._looked_s = now_s
        self._num_seqs = self._capacity.num_seqs()
        if self._num_seqs != 0:
            self._no_worker_since_s = None
        elif self._no_worker_since_s is None:
            self._no_worker_since_s = now_s

    @property
    def has_worker(self) -> bool:
        """Whether some worker was ready at the last look."""
        return self._num_seqs != 0

    def no_worker_s(self, now_s: float) -> float:
        """For how long no worker has been ready."""
        return 0.0 if self._no_worker_since_s is None else now_s - self._no_worker_since_s

    async def wait_change(self) -> None:
        """Returns when a worker came or went or the capacity should be looked up. Raises Unavailable at the end."""
        await self._capacity.wait_change(LOOK_INTERVAL_S)
