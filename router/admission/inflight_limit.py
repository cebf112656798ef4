"""Limit of completions in flight: what the workers can run, plus a margin so that none of them idles."""

import math
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Limits on admitted and on waiting requests."""

    max_inflight: int  # completions
    max_queue: int  # completions; 0: no queue
    max_wait_s: float | None = None  # of any request in the queue; None: no limit
    no_worker_timeout_s: float = 30.0  # maximum wait while there is no worker for the request
    waits_for_worker: bool = False  # requests that generate wait for a first decode worker, instead of failing at once


SPAN_S = 10.0  # busy time over which the rate is averaged, with exponential decay
GUESS_WEIGHT_S = 1.0  # weight of the guess, as busy time
NUM_HELD = 32  # completions over which the duration is averaged


class ServiceRate:
    """Estimate of the completions that end per second.

    The rate is measured only while requests wait: otherwise it reflects the arrivals and not the workers' capacity.
    Until then the estimate is a guess by Little's law, from the duration of completions and their number in flight. The
    guess is too high if larger batches are slower, so it does not refuse requests too early.
    """

    def __init__(self) -> None:
        self._busy_from_s: float | None = None  # None: no request waits
        self._num_ended = 0.0  # completions that ended in busy time, decayed
        self._busy_s = 0.0  # busy time, decayed the same way
        self._held_s: float | None = None  # mean time from a completion's admission to its end

    def busy(self, now_s: float) -> None:
        """Start to measure: requests wait from now on."""
        if self._busy_from_s is None:
            self._busy_from_s = now_s

    def idle(self, now_s: float) -> None:
        """Stop to measure: no request waits any more."""
        self._pass(now_s)
        self._busy_from_s = None

    def ended(self, now_s: float, num_completions: int, held_s: float) -> None:
        """Count completions that ended `held_s` after their admission."""
        weight = min(1.0, num_completions / NUM_HELD)
        self._held_s = held_s if self._held_s is None else self._held_s + (held_s - self._held_s) * weight
        if self._busy_from_s is not None:
            self._pass(now_s)
            self._num_ended += num_completions

    def per_s(self, now_s: float, num_inflight: int) -> float | None:
        """Return the completions that end per second; None before the first one ended."""
        self._pass(now_s)
        if not self._held_s or not num_inflight:
            return self._num_ended / self._busy_s if self._num_ended and self._busy_s else None
        guess = num_inflight / self._held_s
        return (self._num_ended + guess * GUESS_WEIGHT_S) / (self._busy_s + GUESS_WEIGHT_S)

    def _pass(self, now_s: float) -> None:
        """Decay the counts and add the busy time since the last call."""
        if self._busy_from_s is None:
            return
        kept = math.exp((self._busy_from_s - now_s) / SPAN_S)
        self._num_ended *= kept
        self._busy_s = self._busy_s * kept + SPAN_S * (1 - kept)
        self._busy_from_s = now_s


REFRESH_INTERVAL_S = 0.1  # maximum age of the known capacity of the workers
MIN_MARGIN = 8  # completions
MARGIN_DIVISOR = 4  # the margin is the workers' capacity divided by this


class Capacity(Protocol):
    """Capacity of the workers."""

    def num_seqs(self) -> int | None:
        """Return the sequences that the decode workers run at once.

        0: no worker is ready; None: a worker does not report its capacity.
        """
        ...

    def num_embedding_seqs(self) -> int | None:
        """Return the same for the prefill workers that make embeddings."""
        ...

    def has_decoder(self, fingerprint: str) -> bool:
        """Return whether a decode worker with this fingerprint is ready; with any, if it is empty."""
        ...

    async def wait_change(self, timeout_s: float) -> None:
        """Wait until a worker joins or leaves, or for the timeout. Raises Unavailable once the router ends."""
        ...


@dataclass(slots=True)
class _Workers:
    """The workers that some requests need, at the last refresh."""

    num_seqs: int | None = None  # as in `Capacity`
    missing_since_s: float | None = None  # None: one is ready

    def update(self, num_seqs: int | None, now_s: float) -> None:
        """Set the capacity."""
        self.num_seqs = num_seqs
        if num_seqs != 0:
            self.missing_since_s = None
        elif self.missing_since_s is None:
            self.missing_since_s = now_s


class InflightLimit:
    """The limit, from a cached capacity of the workers: there may be a thousand of them.

    Requests that generate need decode workers. Other ones, such as those for embeddings, share the places of decode
    workers; in a pool without any, the workers that make embeddings have places for them.
    """

    def __init__(self, limits: AdmissionLimits, capacity: Capacity) -> None:
        self.max_inflight = limits.max_inflight  # upper bound, whatever the workers' capacity
        self.no_worker_timeout_s = limits.no_worker_timeout_s
        self._waits_for_worker = limits.waits_for_worker
        self._capacity = capacity
        self._generating, self._others = _Workers(), _Workers()
        self._refreshed_s = -math.inf

    def at(self, now_s: float, generates: bool, max_margin: float = math.inf) -> int:
        """Return the completions in flight beyond which further ones wait.

        Without a worker, or if one does not report its capacity, the limit is `max_inflight`: requests are admitted
        and, without a worker, fail at once. It is 0 instead if requests that generate wait for the first decode worker.
        `generates`: of such requests. `max_margin`: maximum completions beyond the workers' capacity.
        """
        has_lost_all = self._generating.num_seqs != 0 and not self._capacity.has_decoder("")
        if now_s - self._refreshed_s > REFRESH_INTERVAL_S or has_lost_all:
            self.refresh(now_s)
        num_seqs = self._needed(generates).num_seqs
        if not num_seqs:
            return 0 if num_seqs == 0 and generates and self._waits_for_worker else self.max_inflight
        margin = min(max(MIN_MARGIN, num_seqs // MARGIN_DIVISOR), max_margin)
        return min(self.max_inflight, num_seqs + int(margin))

    def refresh(self, now_s: float) -> None:
        """Read the capacity of the workers again."""
        self._refreshed_s = now_s
        num_seqs = self._capacity.num_seqs()
        self._generating.update(num_seqs, now_s)
        self._others.update(self._capacity.num_embedding_seqs() if num_seqs == 0 else num_seqs, now_s)

    @property
    def num_seqs(self) -> int:
        """Sequences that the decode workers run at once; `max_inflight` if it is lower or a worker reports none."""
        num_seqs = self._generating.num_seqs
        return self.max_inflight if num_seqs is None else min(num_seqs, self.max_inflight)

    def has_worker(self, generates: bool) -> bool:
        """Return whether some worker for a request was ready at the last refresh; `generates`: as for `at`."""
        return self._needed(generates).num_seqs != 0

    def lacks_worker(self, now_s: float, generates: bool) -> bool:
        """Return whether no worker for a request has been ready for `no_worker_timeout_s`."""
        since_s = self._needed(generates).missing_since_s
        return since_s is not None and now_s - since_s >= self.no_worker_timeout_s

    def begin_drain(self, now_s: float) -> None:
        """Hold no request for a first worker any more: other routers can hold it for longer."""
        if self._waits_for_worker:
            self._waits_for_worker, self.no_worker_timeout_s = False, 0.0
            self.refresh(now_s)

    async def wait_change(self) -> None:
        """Wait until a worker joins or leaves or a refresh is due. Raises Unavailable once the router ends."""
        await self._capacity.wait_change(REFRESH_INTERVAL_S)

    def _needed(self, generates: bool) -> _Workers:
        return self._generating if generates else self._others
