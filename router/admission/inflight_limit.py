"""Limit of completions in flight: what the workers can run, plus a margin so that none of them idles."""

import math
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """How much is taken on, and for how long anybody waits."""

    max_inflight: int  # choices
    max_queue: int  # choices; 0: nobody waits
    default_timeout_s: float | None = None  # of requests that state none; None: no limit
    max_wait_s: float | None = None  # of anybody in the queue; None: no limit
    no_worker_timeout_s: float = 30.0  # how long those who wait do so without any decode worker


SPAN_S = 10.0  # busy time over which the rate is a mean, with exponentially falling weights
GUESS_WEIGHT_S = 1.0  # busy time that the guess counts as much as
NUM_HELD = 32  # choices over which the time that each takes is a mean


class ServiceRate:
    """Owns the estimate of the choices that end in a second.

    Only while requests wait is the number of ends a measure of what the workers can do: otherwise it is that of the
    arrivals. Until such time has passed the estimate is a guess by Little's law, from how long choices take and how
    many are being generated. It is too high where a fuller batch is slower, so nobody is sent away for it too early.
    """

    def __init__(self) -> None:
        self._busy_from_s: float | None = None  # None: nobody waits
        self._num_ended = 0.0  # in busy time, the older the less
        self._busy_s = 0.0  # weighted the same
        self._held_s: float | None = None  # mean time from a choice's admission to its end

    def busy(self, now_s: float) -> None:
        """Requests wait from now on."""
        if self._busy_from_s is None:
            self._busy_from_s = now_s

    def idle(self, now_s: float) -> None:
        """Nobody waits any more."""
        self._pass(now_s)
        self._busy_from_s = None

    def ended(self, now_s: float, num_choices: int, held_s: float) -> None:
        """Choices ended that were admitted `held_s` ago."""
        weight = min(1.0, num_choices / NUM_HELD)
        self._held_s = held_s if self._held_s is None else self._held_s + (held_s - self._held_s) * weight
        if self._busy_from_s is not None:
            self._pass(now_s)
            self._num_ended += num_choices

    def per_s(self, now_s: float, num_inflight: int) -> float | None:
        """Choices that end in a second; None before the first ended."""
        self._pass(now_s)
        if not self._held_s or not num_inflight:
            return self._num_ended / self._busy_s if self._num_ended and self._busy_s else None
        guess = num_inflight / self._held_s
        return (self._num_ended + guess * GUESS_WEIGHT_S) / (self._busy_s + GUESS_WEIGHT_S)

    def _pass(self, now_s: float) -> None:
        """Lets busy time pass."""
        if self._busy_from_s is None:
            return
        kept = math.exp((self._busy_from_s - now_s) / SPAN_S)
        self._num_ended *= kept
        self._busy_s = self._busy_s * kept + SPAN_S * (1 - kept)
        self._busy_from_s = now_s


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
