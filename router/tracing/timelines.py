"""Timelines of running and recent requests, for `baton trace` and the console."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from weakref import WeakSet

import orjson

from baton.router.tracing.recent_request import RecentRequest, recent_request
from baton.router.tracing.request_trace import RequestTrace
from baton.router.tracing.timeline import Timeline, timeline_of

MAX_BYTES = 64 << 20  # of all timelines; one of many completions takes some 100 KB
MAX_RECENT = 30
MAX_SAME_ID = 16  # requests with the same id and owner that ended
MAX_LISTED = 64  # times of requests with the same id; many may run, and administrators find those of all tenants
ANY_OWNER = "*"  # of administrators' questions


@dataclass(frozen=True, slots=True)
class TimelineQuery:
    """A request, named by its id: clients of different tenants may choose the same id, and a client may repeat one."""

    owner: str  # of the request; empty: anonymous; ANY_OWNER: of any
    request_id: str
    begun_at: float | None = None  # Unix time nearest to which it began; None: the one that began last

    def is_for(self, owner: str) -> bool:
        """Return whether requests of this owner are meant."""
        return self.owner in (owner, ANY_OWNER)


@dataclass(frozen=True, slots=True)
class KeptTimeline:
    """The timeline of a request that ended, as JSON, since objects would burden the garbage collector."""

    owner: str
    request_id: str
    begun_at: float
    encoded: bytes


class Timelines:
    """The timelines of the last requests that ended.

    The traces of running requests belong to their front ends, and are found here until these end or drop them.
    """

    def __init__(self, max_requests: int, max_bytes: int = MAX_BYTES) -> None:
        self.recent: deque[RecentRequest] = deque(maxlen=MAX_RECENT)  # the latest last
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._num_kept = 0  # since the start
        self._kept: OrderedDict[int, KeptTimeline] = OrderedDict()  # by number, in the order in which they ended
        self._numbers: dict[str, list[int]] = {}  # of the kept ones by request id
        self._running: WeakSet[RequestTrace] = WeakSet()

    def begin(self, trace: RequestTrace) -> None:
        """Add a running request."""
        self._running.add(trace)

    def keep(self, trace: RequestTrace) -> None:
        """Keep the timeline of a request that ended, and drop the oldest ones if there are too many."""
        self._running.discard(trace)
        self.recent.append(recent_request(trace))
        kept = KeptTimeline(trace.owner, trace.request_id, trace.begun_at, orjson.dumps(timeline_of(trace)))
        self._num_kept += 1
        self._kept[self._num_kept] = kept
        self._numbers.setdefault(kept.request_id, []).append(self._num_kept)
        self._num_bytes += len(kept.encoded)
        same = [each for each in self._numbers[kept.request_id] if self._kept[each].owner == kept.owner]
        if len(same) > MAX_SAME_ID:
            self._drop(same[0])
        while len(self._kept) > self._max_requests or self._num_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def find(self, query: TimelineQuery) -> Timeline | None:
        """Return the timeline that is asked for; None if the request is unknown or was dropped."""
        found: dict[float, KeptTimeline | RequestTrace] = {each.begun_at: each for each in self._kept_ones(query)}
        found |= {trace.begun_at: trace for trace in self._running_ones(query)}
        if not found:
            return None
        chosen = found[nearest(found, query.begun_at)]
        timeline: Timeline = timeline_of(chosen) if isinstance(chosen, RequestTrace) else orjson.loads(chosen.encoded)
        timeline["same_id_begun_at"] = latest(found)
        return timeline

    def _kept_ones(self, query: TimelineQuery) -> Iterator[KeptTimeline]:
        for number in self._numbers.get(query.request_id, ()):
            if query.is_for(self._kept[number].owner):
                yield self._kept[number]

    def _running_ones(self, query: TimelineQuery) -> Iterator[RequestTrace]:
        for trace in self._running:
            if trace.request_id == query.request_id and query.is_for(trace.owner):
                yield trace

    def _drop(self, number: int) -> None:
        dropped = self._kept.pop(number)
        self._num_bytes -= len(dropped.encoded)
        numbers = self._numbers[dropped.request_id]
        numbers.remove(number)
        if not numbers:
            del self._numbers[dropped.request_id]


def latest(times: Iterable[float]) -> list[float]:
    """Return the last `MAX_LISTED` times, ascending."""
    return sorted(times)[-MAX_LISTED:]


def nearest(times: Iterable[float], wanted: float | None) -> float:
    """Return the time that is nearest to the wanted one; None: the last one."""
    return max(times) if wanted is None else min(times, key=lambda each: abs(each - wanted))
