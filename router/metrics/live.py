"""Completions that have not ended, by the stage that they are in."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from baton.router.policy.cluster import Plan


class Stage(Enum):
    """Stage of a completion as the router sees it."""

    QUEUED = "queued"  # it has no workers yet
    PREFILL = "prefill"  # its prompt is computed: no token has arrived
    HANDOVER = "handover"  # its first token has arrived, from a prefill worker: its KV moves to the decode worker
    DECODE = "decode"


@dataclass(slots=True, eq=False)
class LiveCompletion:
    """One completion from its arrival at the dispatcher to its end."""

    request_id: str
    index: int  # among the request's completions
    num_prompt_tokens: int
    max_tokens: int
    arrived_s: float  # of the request, on the monotonic clock
    stage: Stage = Stage.QUEUED
    plan: Plan | None = None  # the current one; None: not routed yet
    num_attempts: int = 0
    adapter: str = ""  # name of its LoRA adapter; empty: none
    routed_s: float | None = None  # when it was first sent to workers, on the same clock
    last_token_s: float = 0.0  # when its last tokens arrived
    ttft_s: float | None = None  # None: no token has arrived
    num_tokens: int = 0  # that workers have generated


@dataclass(frozen=True, slots=True)
class LiveCompletions:
    """All completions that have not ended. Each change takes constant time, and so does each count."""

    _by_stage: dict[Stage, dict[LiveCompletion, None]] = field(
        default_factory=lambda: {stage: {} for stage in Stage}
    )  # in the order in which they entered the stage

    def begin(self, live: LiveCompletion) -> LiveCompletion:
        """Add a completion, and return it."""
        self._by_stage[live.stage][live] = None
        return live

    def routed(self, live: LiveCompletion, plan: Plan) -> None:
        """Record that a completion is sent to workers, for the first time or again."""
        live.plan = plan
        live.num_attempts += 1
        if live.routed_s is None:
            live.routed_s = time.monotonic()
        self._enter(live, Stage.PREFILL)

    def left(self, live: LiveCompletion) -> None:
        """Record that the workers of a completion failed it or gave it away: it waits for others."""
        live.plan = None
        self._enter(live, Stage.QUEUED)

    def tokens(self, live: LiveCompletion, num_tokens: int) -> None:
        """Record tokens of a completion. After its first token, the second one proves that its KV has moved."""
        live.num_tokens += num_tokens
        live.last_token_s = time.monotonic()
        if live.stage is Stage.DECODE:
            return
        if live.ttft_s is None:
            live.ttft_s = live.last_token_s - live.arrived_s
        is_moving = live.stage is Stage.PREFILL and live.plan is not None and live.plan.prefill is not None
        self._enter(live, Stage.HANDOVER if is_moving else Stage.DECODE)

    def end(self, live: LiveCompletion) -> None:
        """Remove a completion."""
        self._by_stage[live.stage].pop(live, None)

    def count(self, stage: Stage) -> int:
        """Return the number of completions in a stage."""
        return len(self._by_stage[stage])

    def running(self) -> Iterator[LiveCompletion]:
        """Yield those that are at workers."""
        for stage in (Stage.PREFILL, Stage.HANDOVER, Stage.DECODE):
            yield from self._by_stage[stage]

    def queued(self) -> Iterator[LiveCompletion]:
        """Yield those that have no workers."""
        return iter(self._by_stage[Stage.QUEUED])

    def longest(self, stage: Stage, limit: int) -> Iterator[LiveCompletion]:
        """Yield those that have been in a stage for the longest time, `limit` at most."""
        return islice(self._by_stage[stage], limit)

    def _enter(self, live: LiveCompletion, stage: Stage) -> None:
        self._by_stage[live.stage].pop(live, None)
        live.stage = stage
        self._by_stage[stage][live] = None
