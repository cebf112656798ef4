"""Threads that fill masks, and bounds on those that are occupied by masks that take long."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from threading import Condition

from baton.engine.errors import QueueFull
from baton.engine.grammar.daemon_threads import DaemonThreads
from baton.engine.grammar.mask_fill import MAX_FILL_S, GrammarState, MaskFill, Phase, SlowMask
from baton.engine.grammar.position import MAX_LOOK_AHEAD_S

MIN_THREADS, MAX_THREADS = 2, 8  # for masks that a step waits for; between them half of the cores
NUM_SLOW_THREADS = 2
MAX_JOBS = 4096
MIN_ROWS_PER_JOB = 4
MAX_REPLACED = 8  # threads whose mask goes on after its request has failed
MAX_LONG = 4  # long masks of a tenant, from which on its requests start no others; as many of its are replaced
MAX_LONG_EXPENSIVE = 2  # the same for requests whose grammars are not cheap


class MaskThreads:
    """Threads for masks that a step waits for, and others for slow masks. The caller's condition guards all of it.

    A mask is long if a step went on without it, or if it was dropped: its request has failed, but it cannot be
    interrupted. A thread with a dropped mask is replaced.
    """

    def __init__(
        self,
        changed: Condition,
        on_start: Callable[[], None],
        on_filled: Callable[[MaskFill, Exception | None], None],
    ) -> None:
        """on_start, on_filled: called on a thread that holds `changed`."""
        self.num_threads = min(MAX_THREADS, max(MIN_THREADS, len(os.sched_getaffinity(0)) // 2))
        self._awaited = DaemonThreads("grammar masks", self.num_threads, MAX_JOBS)
        self._slow = DaemonThreads("slow grammar masks", NUM_SLOW_THREADS, MAX_JOBS)
        self._changed = changed
        self._on_start = on_start
        self._on_filled = on_filled
        self._running: set[MaskFill] = set()  # except for those dropped
        self._long: set[MaskFill] = set()

    @property
    def is_idle(self) -> bool:
        """Whether no mask is being filled."""
        return not self._running and not self._long

    @property
    def needs_check(self) -> bool:
        """Whether `drop_overdue` may have something to do later."""
        return bool(self._running) or any(not fill.is_replaced for fill in self._long)

    @property
    def is_full(self) -> bool:
        """Whether no further thread can be replaced."""
        return self._num_replaced >= MAX_REPLACED

    @property
    def _num_replaced(self) -> int:
        return sum(fill.is_replaced for fill in self._long)

    def is_blocked(self, tenant: str, is_cheap: bool) -> bool:
        """Return whether a tenant's long masks keep its other requests from starting any."""
        if not self._long:
            return False
        num_long = sum(fill.state.tenant == tenant for fill in self._long)
        return num_long >= (MAX_LONG if is_cheap else MAX_LONG_EXPENSIVE)

    def may_await(self, state: GrammarState) -> bool:
        """Return whether a step can wait for a mask of the state."""
        if not state.is_cheap:  # its tenant's expensive masks share a thread, which an earlier step may still occupy
            earlier = [fill.state for fill in self._running if fill.is_awaited and not fill.is_late]
            if any(each is not state and not each.is_cheap and each.tenant == state.tenant for each in earlier):
                return False
        if not self._long:
            return True
        num_occupied = sum(fill.is_awaited and not fill.is_replaced for fill in self._long)
        return num_occupied < self.num_threads and not self.is_blocked(state.tenant, state.is_cheap)

    def start_awaited(self, fills: Iterable[MaskFill]) -> None:
        """Start masks that a step waits for. Those of expensive grammars occupy one thread for each tenant."""
        cheap: list[MaskFill] = []
        expensive: dict[str, list[MaskFill]] = {}
        for fill in sorted(fills, key=lambda fill: -fill.state.num_missed):  # so that none starves
            state = fill.state
            (cheap if state.is_cheap else expensive.setdefault(state.tenant, [])).append(fill)
        num_jobs = min(self.num_threads, -(-len(cheap) // MIN_ROWS_PER_JOB))
        for number in range(num_jobs):
            self.start(cheap[number::num_jobs])
        for job in expensive.values():
            self.start(job)

    def start(self, fills: Sequence[MaskFill]) -> None:
        """Start masks, one after the other. Without a place in the queue they are cancelled."""
        try:
            self._threads_of(fills[0]).submit(lambda: self._run(fills), _owner(fills[0]))
        except QueueFull:
            for fill in fills:
                fill.cancel()

    def note_late(self, fill: MaskFill) -> None:
        """Note that a step goes on without a running mask."""
        fill.is_late = True
        self._long.add(fill)

    def drop_overdue(self) -> list[MaskFill]:
        """Drop the masks that run for too long, and return them."""
        overdue = [fill for fill in self._running if fill.cpu_s > MAX_FILL_S]
        for fill in overdue:
            self._running.remove(fill)
            self._long.add(fill)
            fill.phase, fill.state.fill = Phase.DROPPED, None
        num_replaced = Counter(fill.state.tenant for fill in self._long if fill.is_replaced)
        for fill in self._long:
            if fill.phase is not Phase.DROPPED or fill.is_replaced or self.is_full:
                continue
            if num_replaced[fill.state.tenant] < MAX_LONG:
                self._threads_of(fill).replace(fill.thread_id)
                fill.is_replaced = True
                num_replaced[fill.state.tenant] += 1
        return overdue

    def _threads_of(self, fill: MaskFill) -> DaemonThreads:
        return self._awaited if fill.is_awaited else self._slow

    def _run(self, fills: Sequence[MaskFill]) -> None:
        """Fill masks, on a thread."""
        for fill in fills:
            state = fill.state
            with self._changed:
                if fill.phase is Phase.CANCELLED or state.request() is None:
                    continue
                if state.error is not None or self.is_blocked(state.tenant, state.is_cheap):
                    fill.cancel()
                    self._changed.notify_all()
                    continue
                fill.start()
                self._running.add(fill)
                self._on_start()
                position = state.position
            problem = None
            try:
                assert position is not None
                position.advance(fill.token_ids, fill.restart_clock)
                if fill.drafts and fill.cpu_s < MAX_LOOK_AHEAD_S:  # of the mask; those behind drafts take as long
                    fill.ahead = position.look_ahead(fill.drafts, fill.restart_clock)
            except Exception as error:  # a ValueError is the request's problem, others are faults of the library
                problem = error
            with self._changed:
                last_s = fill.end()
                self._running.discard(fill)
                self._long.discard(fill)
                self._on_filled(fill, SlowMask(last_s) if last_s > MAX_FILL_S else problem)
                self._changed.notify_all()
            del position, problem  # the problem's traceback refers to this frame, and so to a matcher that may be large


def _owner(fill: MaskFill) -> str:
    """Return whose turn a fill takes: masks of cheap grammars are started for several tenants together."""
    return "" if fill.is_awaited and fill.state.is_cheap else f"tenant {fill.state.tenant}"
