"""Load reporting: which commands a report includes, counters, and when the next report is due.

A router estimates a worker's load as the last report plus the commands that the report does not include.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from baton.engine.offload.counters import OffloadCounters
from baton.engine.outputs import EngineStats
from baton.engine.outputs import ExpertShare as EngineShare
from baton.protos.worker_pb2 import ExpertShare, KVTier, OffloadedWeights, WorkerLoad
from baton.rpc.handover_times import HandoverTimes

MAX_UNTOLD = 1 << 16  # unreported numbers of a watcher; with more none are sent, and the router assumes all of them


class TakenCommands:
    """Numbers of the commands that the engine has accepted or refused, kept per watcher until they are reported."""

    def __init__(self) -> None:
        self._unreported: dict[str, list[list[int]]] = {}  # by router; a router may watch twice while it reconnects

    @contextmanager
    def watched(self, router_id: str) -> Iterator[list[int]]:
        """Yield the list of the router's unreported numbers; the watcher empties it whenever it has reported them."""
        unreported: list[int] = []
        watchers = self._unreported.setdefault(router_id, [])
        watchers.append(unreported)
        try:
            yield unreported
        finally:
            watchers[:] = [each for each in watchers if each is not unreported]
            if not watchers:
                del self._unreported[router_id]

    def note(self, router_id: str, number: int) -> None:
        """Record that the engine has accepted or refused the command; number 0: the router does not count."""
        if number:
            for unreported in self._unreported.get(router_id, ()):
                if len(unreported) < MAX_UNTOLD:
                    unreported.append(number)


@dataclass(slots=True)
class TierCounters:
    """Counters of one store below the pool, and what it held when this worker last wrote to it."""

    num_blocks: int = 0
    num_bytes: int = 0
    capacity_bytes: int = 0
    fetched_blocks: int = 0
    fetched_bytes: int = 0
    fetch_seconds: float = 0.0
    slow_fetches: int = 0  # ended early, because computing the rest was faster
    saved_blocks: int = 0
    saved_bytes: int = 0
    failures: int = 0


READ_DECAY = 0.9  # factor on a read's weight with each later read


@dataclass(slots=True)
class ReadRate:
    """Bytes per second of recent reads."""

    _recent_bytes: float = 0.0
    _recent_s: float = 0.0

    def note(self, num_bytes: int, duration_s: float) -> None:
        """Record a read."""
        if num_bytes > 0 and duration_s > 0:
            self._recent_bytes = READ_DECAY * self._recent_bytes + num_bytes
            self._recent_s = READ_DECAY * self._recent_s + duration_s

    @property
    def bytes_per_s(self) -> float:
        """0: not known yet."""
        return self._recent_bytes / self._recent_s if self._recent_s else 0.0


@dataclass(slots=True)
class WorkerCounters:
    """Counters of received KV and commands; changed only on the worker's event loop."""

    handovers: int = 0
    handover_bytes: int = 0
    handover_failures: int = 0
    handover_times: HandoverTimes = field(default_factory=HandoverTimes)
    checksum_failures: int = 0
    num_prefills: int = 0  # prompts of decode workers that are not fully computed
    num_embeddings: int = 0  # inputs of embeddings that are not computed
    num_remembered: int = 0  # finished requests whose output can be recalled
    tiers: dict[str, TierCounters] = field(default_factory=dict)  # by the name of the store below the pool
    taken: TakenCommands = field(default_factory=TakenCommands)
    reads: ReadRate = field(default_factory=ReadRate)  # of KV of peers, without waits
    fetches: ReadRate = field(default_factory=ReadRate)  # of KV in stores below the pool


def load_report(
    stats: EngineStats, counters: WorkerCounters, transports: Mapping[str, str] | None = None
) -> WorkerLoad:
    """Return a worker's load report. transports: the transport in use and the reason, by peer."""
    return WorkerLoad(
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        num_prefills=counters.num_prefills + counters.num_embeddings,
        num_queued_tokens=stats.num_queued_tokens,
        num_free_blocks=stats.num_free_blocks,
        num_blocks=stats.num_blocks,
        step_s=stats.step_s,
        num_generated_tokens=stats.num_generated_tokens,
        num_prefilled_tokens=stats.num_prefilled_tokens,
        num_preemptions=stats.num_preemptions,
        handovers=counters.handovers,
        handover_bytes=counters.handover_bytes,
        handover_failures=counters.handover_failures,
        checksum_failures=counters.checksum_failures,
        completed_handovers=counters.handover_times.to_proto(),
        peer_transports=transports,
        prefill_tokens_per_s=stats.prefill_tokens_per_s,
        decode_step_s=stats.decode_step_s,
        decode_sequence_s=stats.decode_sequence_s,
        read_bytes_per_s=counters.reads.bytes_per_s,
        fetch_bytes_per_s=counters.fetches.bytes_per_s,
        num_grammar_compiles=stats.grammars.num_compiles,
        grammar_compile_s=stats.grammars.compile_s,
        num_grammar_cache_hits=stats.grammars.num_cache_hits,
        num_grammar_masks=stats.grammars.num_masks,
        grammar_mask_s=stats.grammars.mask_s,
        num_grammar_forced_tokens=stats.grammars.num_forced,
        num_grammar_late_masks=stats.grammars.num_late_masks,
        num_awaited_blocks=stats.num_awaited_blocks,
        num_receiving=stats.num_receiving,
        tiers=[_tier(name, tier) for name, tier in counters.tiers.items()],
        num_drafts=stats.speculation.num_drafts,
        num_draft_tokens=stats.speculation.num_draft_tokens,
        accepted_by_position=stats.speculation.accepted_by_position,
        drafting_s=stats.speculation.drafting_s,
        num_pins=stats.pins.num_pins,
        num_pinned_blocks=stats.pins.num_blocks,
        num_dropped_pins=stats.pins.num_dropped,
        num_looked_up_tokens=stats.num_looked_up_tokens,
        num_cached_tokens=stats.num_cached_tokens,
        adapter_load_s=stats.adapter_load_s,
        resident_adapters=stats.resident_adapters,
        weights_offload=_offloaded(stats.offload) if stats.offload.num_stored_bytes else None,
        experts=None if stats.experts is None else _experts(stats.experts),
    )


def _offloaded(offload: OffloadCounters) -> OffloadedWeights:
    return OffloadedWeights(
        stored_bytes=offload.num_stored_bytes,
        read_bytes=offload.num_read_bytes,
        wait_s=offload.waited_s,
        expert_hits=offload.num_expert_hits,
        expert_misses=offload.num_expert_misses,
    )


def _experts(share: EngineShare) -> ExpertShare:
    return ExpertShare(
        rank=share.rank,
        num_ranks=share.num_ranks,
        epoch=share.epoch,
        layer=share.layer,
        experts=share.experts,
        imbalance=share.imbalance,
        num_rows=share.num_rows,
        group=share.group,
    )


def _tier(name: str, tier: TierCounters) -> KVTier:
    return KVTier(
        name=name,
        num_blocks=tier.num_blocks,
        num_bytes=tier.num_bytes,
        capacity_bytes=tier.capacity_bytes,
        fetched_blocks=tier.fetched_blocks,
        slow_fetches=tier.slow_fetches,
        saved_blocks=tier.saved_blocks,
        failures=tier.failures,
    )


class ReportClock:
    """The timer of one watcher's reports: due after a change, at most one per interval.

    Used from one event loop; `wait` has one caller.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._due = asyncio.Event()
        self._due_at_s = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._reported_at_s = asyncio.get_running_loop().time()

    def note_news(self) -> None:
        """Make a report due when the interval since the last one has passed."""
        self._due_by(self._reported_at_s + self._interval_s)

    def note_urgent_news(self) -> None:
        """Make a report due now."""
        self._due_by(-math.inf)

    async def wait(self, at_most_s: float) -> None:
        """Return when a report is due: after a change, or in `at_most_s` without one; call it after each report."""
        self._due_by(asyncio.get_running_loop().time() + at_most_s)
        await self._due.wait()
        self._reset()

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _due_by(self, time_s: float) -> None:
        if self._due.is_set() or time_s >= self._due_at_s:
            return
        self.close()
        loop = asyncio.get_running_loop()
        self._due_at_s = time_s
        if time_s <= loop.time():
            self._due.set()
        else:
            self._timer = loop.call_at(time_s, self._due.set)

    def _reset(self) -> None:
        """Start the next interval: later changes belong to the next report."""
        self.close()
        self._due.clear()
        self._due_at_s = math.inf
        self._reported_at_s = asyncio.get_running_loop().time()
