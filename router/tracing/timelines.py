"""Timelines of recent requests, for `baton trace`."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import orjson
from typing_extensions import TypedDict

from baton.router.tracing.request_trace import RequestTrace, WorkerTiming
from baton.rpc.tracing.span import Attribute, Span

MAX_BYTES = 64 << 20  # of all timelines; one of many completions takes some 100 KB


class TimelineEvent(TypedDict):
    """Something that happened at one moment of a span."""

    name: str
    at_s: float  # since the start of the request, as in all fields
    attributes: Mapping[str, Attribute]


class TimelineSpan(TypedDict):
    """A period of a request."""

    name: str
    where: str  # router, or the id of a worker
    depth: int  # number of spans that contain it
    start_s: float
    duration_s: float
    attributes: Mapping[str, Attribute]
    events: list[TimelineEvent]
    error: str | None  # class of the error that ended it
    reason: str


class Timeline(TypedDict):
    """Response of `/timelines/{request_id}`."""

    request_id: str
    trace_id: str
    sampled: bool
    model: str  # empty: the request named none that is served
    begun_at: float  # seconds since 1970
    duration_s: float
    attributes: Mapping[str, Attribute]
    spans: list[TimelineSpan]
    dropped_spans: int


class TimelineKey(NamedTuple):
    """Name of a timeline: clients of different tenants may choose the same id."""

    owner: str  # of the request; empty: anonymous
    request_id: str


class Timelines:
    """The timelines of the last requests that ended, by key, as JSON: objects would burden the garbage collector."""

    def __init__(self, max_requests: int, max_bytes: int = MAX_BYTES) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._by_key: OrderedDict[TimelineKey, bytes] = OrderedDict()

    def keep(self, trace: RequestTrace) -> None:
        """Keep the timeline of a request that ended, and drop the oldest ones if there are too many."""
        key = TimelineKey(trace.owner, trace.request_id)
        self._num_bytes -= len(self._by_key.pop(key, b""))  # clients may repeat ids; the last request counts
        timeline = self._by_key[key] = orjson.dumps(_timeline(trace))
        self._num_bytes += len(timeline)
        while len(self._by_key) > self._max_requests or self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._by_key.popitem(last=False)[1])

    def find(self, key: TimelineKey) -> bytes | None:
        """Return a timeline; None if the request is unknown, has not ended or was dropped."""
        return self._by_key.get(key)


def _timeline(trace: RequestTrace) -> Timeline:
    root = trace.root
    return {
        "request_id": trace.request_id,
        "trace_id": f"{root.context.trace_id:032x}",
        "sampled": root.context.is_sampled,
        "model": trace.model,
        "begun_at": root.begun_s + trace.recorder.wall_offset_s,
        "duration_s": root.duration_s,
        "attributes": root.attributes,
        "spans": list(_spans(trace)),
        "dropped_spans": trace.recorder.num_dropped,
    }


def _spans(trace: RequestTrace) -> Iterator[TimelineSpan]:
    """Yield the spans in the order of their starts, those of workers below their attempt."""
    timings: dict[int, list[WorkerTiming]] = {}
    for each in trace.worker_timings:
        timings.setdefault(each.attempt.context.span_id, []).append(each)
    for span in sorted(trace.recorder.spans, key=lambda span: span.begun_s):
        yield _own(span, trace.root)
        for timing in timings.get(span.context.span_id, ()):
            yield _workers(timing, trace.root)


def _own(span: Span, root: Span) -> TimelineSpan:
    events: list[TimelineEvent] = [
        {"name": event.name, "at_s": event.at_s - root.begun_s, "attributes": event.attributes} for event in span.events
    ]
    return {
        "name": span.name,
        "where": "router",
        "depth": int(span is not root),
        "start_s": span.begun_s - root.begun_s,
        "duration_s": span.duration_s,
        "attributes": span.attributes,
        "events": events,
        "error": span.error,
        "reason": span.reason,
    }


def _workers(each: WorkerTiming, root: Span) -> TimelineSpan:
    """Return a worker's span. Its clock is not the router's: it counts from the start of the attempt at the router."""
    timing = each.timing
    return {
        "name": timing.name,
        "where": timing.worker_id,
        "depth": timing.depth + 2,
        "start_s": each.attempt.begun_s - root.begun_s + timing.start_s,
        "duration_s": timing.duration_s,
        "attributes": dict(timing.attributes),
        "events": [],
        "error": timing.error or None,
        "reason": "",
    }
