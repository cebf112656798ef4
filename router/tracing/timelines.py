"""Timelines of running and recent requests, for `baton trace` and the console."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

import orjson

from baton.router.tracing.recent_request import RecentRequest, recent_request
from baton.router.tracing.request_trace import RequestTrace
from baton.router.tracing.timeline import timeline_of

MAX_BYTES = 64 << 20  # of all timelines; one of many completions takes some 100 KB
MAX_RECENT = 30
ANY_OWNER = "*"  # of administrators' questions

Found = TypeVar("Found")


class TimelineKey(NamedTuple):
    """Name of a timeline: clients of different tenants may choose the same id."""

    owner: str  # of the request; empty: anonymous; ANY_OWNER: finds the last one with this id
    request_id: str


class Timelines:
    """The timelines of the last requests that ended, as JSON, since objects would burden the garbage collector.

    The traces of running requests belong to their front ends, and are found here until these end or drop them.
    """

    def __init__(self, max_requests: int, max_bytes: int = MAX_BYTES) -> None:
        self.recent: deque[RecentRequest] = deque(maxlen=MAX_RECENT)  # the latest last
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._by_key: OrderedDict[TimelineKey, bytes] = OrderedDict()
        self._running: WeakValueDictionary[TimelineKey, RequestTrace] = WeakValueDictionary()

    def begin(self, trace: RequestTrace) -> None:
        """Add a running request. Of several with the same id, the last one is found."""
        key = TimelineKey(trace.owner, trace.request_id)
        self._running.pop(key, None)  # an entry that is replaced would keep its place
        self._running[key] = trace

    def keep(self, trace: RequestTrace) -> None:
        """Keep the timeline of a request that ended, and drop the oldest ones if there are too many."""
        key = TimelineKey(trace.owner, trace.request_id)
        if self._running.get(key) is trace:
            del self._running[key]
        self._num_bytes -= len(self._by_key.pop(key, b""))  # clients may repeat ids; the last request counts
        timeline = self._by_key[key] = orjson.dumps(timeline_of(trace))
        self.recent.append(recent_request(trace))
        self._num_bytes += len(timeline)
        while len(self._by_key) > self._max_requests or self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._by_key.popitem(last=False)[1])

    def find(self, key: TimelineKey) -> bytes | None:
        """Return the newest timeline with this key; None if the request is unknown or was dropped."""
        running = _last(self._running, key)
        return _last(self._by_key, key) if running is None else orjson.dumps(timeline_of(running))


def _last(by_key: Mapping[TimelineKey, Found], wanted: TimelineKey) -> Found | None:
    if wanted.owner != ANY_OWNER:
        return by_key.get(wanted)
    found = [each for key, each in by_key.items() if key.request_id == wanted.request_id]
    return found[-1] if found else None
