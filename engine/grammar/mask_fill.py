"""A mask that a thread fills, and the request's grammar that it belongs to."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from weakref import ref

from baton.engine.errors import EngineError
from baton.engine.grammar.grammar import Grammar
from baton.engine.grammar.position import Allowed, GrammarPosition
from baton.engine.request import Request

SLOW_FILL_S = 0.05  # CPU time of a mask from which its request's masks are filled between the steps
BLOCKED_S = 0.5  # time after which a mask is slow without using the CPU
MAX_FILL_S = 2.0  # CPU time of matching one token, or of one mask, at which its request fails


class SlowMask(ValueError):
    """A token, or a mask, has taken over MAX_FILL_S of CPU time: its grammar is unusable."""

    def __init__(self, duration_s: float) -> None:
        super().__init__(f"it took {duration_s:.1f} s to match one token; make it less ambiguous")


class Phase(Enum):
    """State of a mask that was started."""

    QUEUED = "queued"
    RUNNING = "running"
    DROPPED = "dropped"  # runs on, although its request has failed
    CANCELLED = "cancelled"  # before it ran
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class MaskFill:
    """A mask that was started."""

    state: "GrammarState"
    token_ids: Sequence[int]  # output tokens to match first
    is_awaited: bool  # by a step; otherwise on the threads for slow masks
    drafts: Sequence[int] = ()  # tokens that may follow them, behind which masks are filled too
    ahead: Sequence[Allowed] = ()  # behind each of these, up to one that is not allowed
    phase: Phase = Phase.QUEUED
    started_at_s: float = 0.0  # monotonic clock
    thread_id: int = 0
    clock_id: int = 0  # of its thread's CPU time
    started_cpu_s: float = 0.0
    restarted_cpu_s: float = 0.0
    total_s: float = 0.0  # CPU time, once it has ended
    is_replaced: bool = False  # its thread
    is_late: bool = False  # awaited and long, and the step went on without it

    def start(self) -> None:
        """Note that the calling thread fills it from now on. Not by the clock: other threads may take turns."""
        self.phase, self.started_at_s, self.thread_id = Phase.RUNNING, time.monotonic(), threading.get_ident()
        self.clock_id = time.pthread_getcpuclockid(self.thread_id)
        self.started_cpu_s = self.restarted_cpu_s = time.clock_gettime(self.clock_id)

    def restart_clock(self) -> float:
        """Return the CPU time since the last call. Raises EngineError if the request has failed in the meantime."""
        if self.state.error is not None:
            raise EngineError("the request of a mask has failed")
        now_s = time.clock_gettime(self.clock_id)
        duration_s = now_s - self.restarted_cpu_s
        self.restarted_cpu_s = now_s
        return duration_s

    def end(self) -> float:
        """Note that it has ended. Returns the CPU time since the clock was restarted."""
        now_s = time.clock_gettime(self.clock_id)
        self.phase, self.total_s = Phase.ENDED, now_s - self.started_cpu_s
        return now_s - self.restarted_cpu_s

    def cancel(self) -> None:
        """Give up a fill that has not started; the request may start another."""
        self.phase = Phase.CANCELLED
        self.state.fill = None

    @property
    def cpu_s(self) -> float:
        """CPU time since the clock was restarted, while its thread is alive; may be read from any thread."""
        return time.clock_gettime(self.clock_id) - self.restarted_cpu_s

    @property
    def is_slow(self) -> bool:
        """Whether it takes long while it runs, and not because the machine is busy."""
        if time.monotonic() - self.started_at_s > BLOCKED_S:
            return True
        return time.clock_gettime(self.clock_id) - self.started_cpu_s > SLOW_FILL_S


@dataclass(slots=True, eq=False, weakref_slot=True)
class GrammarState:
    """A request's grammar in this engine."""

    request: "ref[Request]"
    grammar: Grammar
    cache_salt: str
    tenant: str
    ready: object = None  # the compiled grammar, which counts as used as long as this refers to it
    position: GrammarPosition | None = None  # None: the grammar is not compiled
    num_masked: int = -1  # output tokens that precede the mask in `position`
    ahead: Sequence[Allowed] = ()  # behind the drafted tokens that may follow these
    is_slow: bool = False
    is_cheap: bool = True  # to compile
    waiting_since_s: float | None = None  # monotonic clock; None: its mask can be filled, or was
    num_missed: int = 0  # consecutive steps without its mask, because those of other requests were in front
    fill: MaskFill | None = None
    error: EngineError | None = None

    def allowed(self, request: Request, num_drafted: int) -> Allowed | None:
        """Return what may follow the request's tokens and drafted ones; None if its mask is missing."""
        if self.position is None or self.num_masked != request.num_output_tokens:
            return None
        if not num_drafted:
            return self.position.allowed
        return self.ahead[num_drafted - 1] if num_drafted <= len(self.ahead) else None

    def note_wait(self) -> None:
        """Note that the request cannot be sampled for lack of its mask."""
        if self.waiting_since_s is None:
            self.waiting_since_s = time.monotonic()

    def has_waited(self, duration_s: float) -> bool:
        """Return whether the request waits for its mask, and has for longer than `duration_s`."""
        return self.waiting_since_s is not None and time.monotonic() - self.waiting_since_s > duration_s

    def lacks_mask(self, request: Request) -> bool:
        """Return whether the mask of the next token can be filled and was not started."""
        is_idle = self.position is not None and self.error is None and self.fill is None
        return is_idle and self.num_masked != request.num_output_tokens
