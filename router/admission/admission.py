"""Admission of requests, and the queue in front of it.

The life of a request here:

1. It is admitted at once if no request waits and fewer completions are in flight than the workers run
   (`InflightLimit`).
2. Otherwise it is refused if its deadline would expire before its turn (by the measured rate at which completions
   end), if it would wait longer than `max_wait_s`, or if the queue is full and no queued request should yield to it.
3. Otherwise it waits: more urgent requests first, then the keys take turns (`FairQueue`). Requests are admitted as
   completions end or workers join. A request leaves early if its client disconnects or its deadline expires.
4. It holds room for its completions until its last token is generated, whether or not its client has read it
   (`UnreadOutput`).

Each model of a router has its own admission, which shares the router's places with those of the others
(`SharedPlaces`).
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from baton.engine.errors import InvalidRequest
from baton.router.admission.deadline import exceeded
from baton.router.admission.fair_queue import FairQueue, Ticket
from baton.router.admission.inflight_limit import AdmissionLimits, Capacity, InflightLimit, ServiceRate
from baton.router.admission.metrics import AdmissionMetrics, Refusal
from baton.router.admission.shared_places import SharedPlaces
from baton.router.errors import Draining, NoWorker, Overloaded
from baton.router.metrics.traffic import Arrival, Arrivals
from baton.router.request_context import RequestContext
from baton.rpc.status import Unavailable


@dataclass(slots=True, eq=False)
class _Waiter(Ticket):
    """A request in the queue, with the future that admits it."""

    admitted: asyncio.Future[None]
    since_s: float  # when it was queued
    is_deferred: bool
    generates: bool
    is_queued: bool = True


class Admission:
    """The count of a model's admitted completions, from before their prompts are tokenised, and its queue."""

    def __init__(
        self,
        limits: AdmissionLimits,
        capacity: Capacity,
        metrics: AdmissionMetrics,
        arrivals: Arrivals,
        clock: Callable[[], float] = time.monotonic,
        places: SharedPlaces | None = None,
    ) -> None:
        """`places`: those that several models share; None: the router serves one model."""
        self.num_inflight = 0
        self.num_deferred = 0  # those of `num_inflight` that are of batches
        self.on_pressure: Callable[[int], None] = lambda _: None  # see `_press`
        self.draining = False
        self.arrivals = arrivals  # of requests that generate
        self.limits = limits
        self._limit = InflightLimit(limits, capacity)
        self._metrics = metrics
        self._clock = clock
        self._queue = FairQueue[_Waiter]()
        self._rate = ServiceRate()
        self._watch: asyncio.Task[None] | None = None  # while requests wait
        self._idle = asyncio.Event()
        self._idle.set()
        self._places = places
        if places is not None:
            places.join(self)
        metrics.watch(lambda: self.num_waiting, lambda: self._limit_at(self._clock(), generates=False))

    @property
    def num_waiting(self) -> int:
        """Completions in the queue."""
        return self._queue.num_completions

    @property
    def num_seqs(self) -> int:
        """Sequences that the workers run at once."""
        self._limit_at(self._clock(), generates=True)
        return self._limit.num_seqs

    @property
    def oldest_wait_s(self) -> float:
        """Seconds that the oldest request in the queue has waited; 0 if the queue is empty."""
        tickets = self._queue.tickets()
        return self._clock() - min(each.since_s for each in tickets) if tickets else 0.0

    @asynccontextmanager
    async def admit(self, num_completions: int, context: RequestContext, generates: bool = True) -> AsyncIterator[None]:
        """Return a context manager that waits for the request's turn and holds room for its completions.

        `num_completions`: at most `max_inflight`. `generates`: it needs decode workers, and the time in the context is
        a sample of their speed. Entering it raises Draining, Overloaded, DeadlineExceeded or NoWorker.
        """
        arrival: Arrival | None = None
        if generates and not context.is_deferred and not self.draining:
            arrival = self.arrivals.add(num_completions)
        admitted_s = await self.enter(num_completions, context, generates)
        try:
            yield
        except InvalidRequest:
            generates = False
            if arrival is not None:
                self.arrivals.remove(arrival)
            raise
        finally:
            self.leave(num_completions, admitted_s, generates, context.is_deferred)

    def begin_drain(self) -> None:
        """Let no request wait for a first worker any more: refuse those that do, and fail new ones at once."""
        now_s = self._clock()
        self._limit.begin_drain(now_s)
        self._fail_without_worker(now_s)

    async def enter(self, num_completions: int, context: RequestContext, generates: bool) -> float:
        """Wait for the request's turn and return the time of its admission; see `admit`."""
        if self.draining:
            self._metrics.refused(Refusal.DRAINING)
            raise Draining("the router is shutting down; retry at another router")
        now_s = self._clock()
        left_s = math.inf if context.deadline_s is None else context.deadline_s - now_s
        if left_s <= 0:
            self._metrics.refused(Refusal.EXPIRED)
            raise exceeded("was being received")
        if self._fits(num_completions, now_s, generates) and not (self._limit.has_worker(generates) and self._advances):
            self._take(num_completions, context.is_deferred)
            self._press(context.is_deferred)
            return now_s
        turn, key = asyncio.get_running_loop().create_future(), context.fairness_key
        ticket = _Waiter(num_completions, context.priority, key, turn, now_s, context.is_deferred, generates)
        self._refuse_late(ticket, now_s, left_s)
        self._make_room(ticket, now_s)
        await self._wait(ticket, now_s, left_s)
        admitted_s = self._clock()
        self._metrics.waited(admitted_s - now_s)
        return admitted_s

    def leave(self, num_completions: int, admitted_s: float, generates: bool = True, is_deferred: bool = False) -> None:
        """Release the room of completions that were admitted at `admitted_s`."""
        self.num_inflight -= num_completions
        if is_deferred:
            self.num_deferred -= num_completions
        now_s = self._clock()
        if generates:
            self._rate.ended(now_s, num_completions, now_s - admitted_s)
        if self._places is None:
            self.serve(now_s)
        else:
            self._places.serve(now_s)

    def serve(self, now_s: float) -> None:
        """Admit requests from the head of the queue while there is room."""
        while self.num_waiting:
            head = self._queue.head()
            if head.admitted.done():  # cancelled; its own task has not run yet
                self._remove(head)
                continue
            if not (self._fits(head.num_completions, now_s, head.generates) and self._limit.has_worker(head.generates)):
                return
            self._queue.take(head)
            head.is_queued = False
            self._take(head.num_completions, head.is_deferred)
            head.admitted.set_result(None)
        self._rate.idle(now_s)
        if not self.num_inflight:
            self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Return True once no request is in flight or waits, False after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    @property
    def _advances(self) -> bool:
        """Whether requests wait, and there is a worker for the one at the head of the queue."""
        return self.num_waiting > 0 and self._limit.has_worker(self._queue.head().generates)

    def _limit_at(self, now_s: float, generates: bool) -> int:
        """Return the limit of completions in flight.

        Completions beyond the workers' capacity wait at the workers: no more of them than end within `max_wait_s`.
        """
        if self.limits.max_wait_s is None:
            return self._limit.at(now_s, generates)
        rate = self._rate.per_s(now_s, self.num_inflight)
        return self._limit.at(now_s, generates, math.inf if rate is None else rate * self.limits.max_wait_s)

    def _fits(self, num_completions: int, now_s: float, generates: bool) -> bool:
        """Return whether a request may be admitted now.

        A large request may exceed the limit, so that the workers need not run empty first. Some of its completions
        then wait at the workers.
        """
        if self.num_inflight >= self._limit_at(now_s, generates):
            return False
        if self._places is not None:
            return num_completions <= self._places.num_free(self)
        return self.num_inflight + num_completions <= self._limit.max_inflight

    def _take(self, num_completions: int, is_deferred: bool) -> None:
        self.num_inflight += num_completions
        if is_deferred:
            self.num_deferred += num_completions
        self._idle.clear()

    def _press(self, is_deferred: bool) -> None:
        """Call `on_pressure` after the arrival of an interactive request if some of them lack room.

        Its argument is the number of completions of batches that should give up theirs.
        """
        num_over = self.num_inflight + self.num_waiting - self._limit.num_seqs
        if num_over > 0 and self.num_deferred and not is_deferred:
            self.on_pressure(min(num_over, self.num_deferred))

    def _refuse_late(self, ticket: _Waiter, now_s: float, left_s: float) -> None:
        """Raise Overloaded if the request's expected wait exceeds its deadline or `max_wait_s`."""
        max_wait_s = math.inf if self.limits.max_wait_s is None else self.limits.max_wait_s
        least_s = min(left_s, max_wait_s)
        wait_s = self._expected_wait_s(ticket, now_s) if least_s < math.inf else None
        if wait_s is None or wait_s <= least_s:
            return
        is_deadline = left_s <= max_wait_s
        self._metrics.refused(Refusal.DEADLINE if is_deadline else Refusal.WAIT)
        bound = f"but its deadline is in {left_s:.1f} s" if is_deadline else f"over the limit of {max_wait_s:g} s"
        text = f"the request would wait about {wait_s:.1f} s in the queue, {bound}"
        raise Overloaded.after(wait_s - least_s, text)

    def _make_room(self, ticket: _Waiter, now_s: float) -> None:
        """Displace requests from a full queue. Raises Overloaded if none should yield."""
        num_over = self.num_waiting + ticket.num_completions - self.limits.max_queue
        if num_over <= 0:
            return
        displaced = self._queue.displaced_by(ticket, num_over)
        wait_s = self._expected_wait_s(ticket, now_s)
        if not displaced:
            self._metrics.refused(Refusal.QUEUE_FULL)
            raise Overloaded.after(
                wait_s,
                f"no room for {ticket.num_completions} more: {self.num_inflight} completions are in progress "
                f"(limit: {self._limit_at(now_s, ticket.generates)}) and {self.num_waiting} wait (limit: "
                f"{self.limits.max_queue})",
            )
        text = "the queue is full, and a more urgent request or another client's displaced this one"
        for each in displaced:
            self._fail(each, Overloaded.after(wait_s, text), Refusal.DISPLACED)

    def _expected_wait_s(self, ticket: _Waiter, now_s: float) -> float | None:
        """Return the expected wait of the request if it joins the queue now; None if the rate is unknown."""
        rate = self._rate.per_s(now_s, self.num_inflight)
        if rate is None:
            return None
        num_free = max(0, self._limit_at(now_s, ticket.generates) - self.num_inflight)
        return max(0, self._queue.num_ahead(ticket) + ticket.num_completions - num_free) / rate

    async def _wait(self, ticket: _Waiter, now_s: float, left_s: float) -> None:
        """Wait until the request is admitted. Raises the error of a refusal; a cancelled request leaves the queue."""
        loop = asyncio.get_running_loop()
        self._queue.add(ticket)
        self._idle.clear()
        if self._limit.has_worker(generates=True):
            self._rate.busy(now_s)
        self._press(ticket.is_deferred)
        if self._watch is None or self._watch.done():
            self._watch = loop.create_task(self._watch_workers(), name="admission")
        timers = [loop.call_later(left_s, self._expire, ticket)] if left_s < math.inf else []
        if self.limits.max_wait_s is not None:
            timers.append(loop.call_later(self.limits.max_wait_s, self._give_up, ticket))
        try:
            await ticket.admitted
        except asyncio.CancelledError:
            if ticket.is_queued:
                self._remove(ticket)
                self.serve(self._clock())
            elif not ticket.admitted.cancelled() and ticket.admitted.exception() is None:
                now_s = self._clock()  # admitted in the same iteration of the event loop
                self.leave(ticket.num_completions, now_s, ticket.generates, ticket.is_deferred)
            raise
        finally:
            for timer in timers:
                timer.cancel()

    def _expire(self, ticket: _Waiter) -> None:
        if ticket.is_queued:
            self._fail(ticket, exceeded("waited in the queue"), Refusal.EXPIRED)
            self.serve(self._clock())  # a large request at the head blocks the ones after it

    def _give_up(self, ticket: _Waiter) -> None:
        """Refuse a request that has waited for `max_wait_s`."""
        if ticket.is_queued:
            text = f"the request has waited for the limit of {self.limits.max_wait_s:g} s"
            self._fail(ticket, Overloaded.after(self._expected_wait_s(ticket, self._clock()), text), Refusal.WAIT)
            self.serve(self._clock())

    def _fail(self, ticket: _Waiter, error: Exception, reason: Refusal) -> None:
        self._remove(ticket)
        if not ticket.admitted.done():
            self._metrics.refused(reason)
            ticket.admitted.set_exception(error)

    def _remove(self, ticket: _Waiter) -> None:
        self._queue.remove(ticket)
        ticket.is_queued = False

    async def _watch_workers(self) -> None:
        """Serve the queue whenever workers join or leave, until it is empty."""
        while self.num_waiting:
            try:
                await self._limit.wait_change()
            except Unavailable as error:
                self._fail_all(error, Refusal.DRAINING)
                return
            now_s = self._clock()
            self._limit.refresh(now_s)
            (self._rate.busy if self._limit.has_worker(generates=True) else self._rate.idle)(now_s)
            self._fail_without_worker(now_s)
            self.serve(now_s)

    def _fail_without_worker(self, now_s: float) -> None:
        """Fail the requests that have waited for too long while there was no worker for them."""
        timeout_s = self._limit.no_worker_timeout_s
        lacking = [kind for kind in (True, False) if self._limit.lacks_worker(now_s, kind)]
        for ticket in self._queue.tickets() if lacking else ():
            if ticket.generates in lacking and now_s - ticket.since_s >= timeout_s:
                kind = "decode worker" if ticket.generates else "worker"
                self._fail(ticket, NoWorker(f"no {kind} is ready"), Refusal.NO_WORKER)

    def _fail_all(self, error: Unavailable, reason: Refusal) -> None:
        """Fail all waiting requests."""
        for ticket in self._queue.tickets():
            self._fail(ticket, error, reason)
        self.serve(self._clock())
