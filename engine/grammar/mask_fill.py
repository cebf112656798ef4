"""A mask that a thread fills, and the request's grammar that it belongs to."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from weakref import ref

from baton.engine.errors import EngineError
from baton.engine.grammar.position import GrammarPosition
from baton.engine.request import Request


class Phase(Enum):
    """State of a mask that was started."""

    QUEUED = "queued"
    RUNNING = "running"
    DROPPED = "dropped"  # runs on, although its request has failed
    CANCELLED = "cancelled"  # before it ran


@dataclass(slots=True, eq=False)
class MaskFill:
    """A mask that was started."""

    state: "GrammarState"
    token_ids: Sequence[int]  # output tokens to match first
    is_awaited: bool  # by a step; otherwise on the threads for slow masks
    phase: Phase = Phase.QUEUED
    started_at_s: float = 0.0  # monotonic clock
    clock_id: int = 0  # of its thread's CPU time
    started_cpu_s: float = 0.0
    restarted_cpu_s: float = 0.0
    is_replaced: bool = False  # its thread
    is_late: bool = False  # awaited and long, and the step went on without it

    def start(self) -> None:
        """Note that the calling thread fills it from now on. Not by the clock: other threads may take turns."""
        self.phase, self.started_at_s = Phase.RUNNING, time.monotonic()
        self.clock_id = time.pthread_getcpuclockid(threading.get_ident())
        self.started_cpu_s = self.restarted_cpu_s = time.clock_gettime(self.clock_id)

    def restart_clock(self) -> None:
        """Note that a token was matched."""
        self.restarted_cpu_s = time.clock_gettime(self.clock_id)

    @property
    def cpu_s(self) -> float:
        """CPU time since the last matched token, while its thread is alive; may be read from any thread."""
        return time.clock_gettime(self.clock_id) - self.restarted_cpu_s

    @property
    def total_cpu_s(self) -> float:
        """CPU time since its start."""
        return time.clock_gettime(self.clock_id) - self.started_cpu_s


@dataclass(slots=True, eq=False)
class GrammarState:
    """A request's grammar in this engine."""

    request: "ref[Request]"
    stop_token_ids: frozenset[int]
    position: GrammarPosition | None = None  # None: the grammar is not compiled
    num_masked: int = -1  # output tokens that precede the mask in `position`
    is_slow: bool = False
    num_missed: int = 0  # consecutive steps without its mask, because those of other requests were in front
    fill: MaskFill | None = None
    error: EngineError | None = None

    def lacks_mask(self, request: Request) -> bool:
        """Return whether the mask of the next token can be filled and was not started."""
        is_idle = self.position is not None and self.error is None and self.fill is None
        return is_idle and self.num_masked != request.num_output_tokens
