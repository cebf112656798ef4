"""The timeline of one request: its spans at the router and at its workers, as `/timelines/ID` returns them."""

from collections.abc import Iterator, Mapping

from typing_extensions import TypedDict

from baton.router.tracing.request_trace import RequestTrace, WorkerTiming
from baton.rpc.tracing.span import Attribute, Span


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
    duration_s: float  # until now while it is running
    running: bool  # it has not ended
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
    same_id_begun_at: list[float]  # of the last requests with this id, usually itself included, ascending
    duration_s: float
    running: bool  # the request has not ended: spans of its current workers are still missing
    attributes: Mapping[str, Attribute]
    spans: list[TimelineSpan]
    dropped_spans: int


def timeline_of(trace: RequestTrace) -> Timeline:
    """Return the timeline of a request, also of one that has not ended."""
    root = trace.root
    return {
        "request_id": trace.request_id,
        "trace_id": f"{root.context.trace_id:032x}",
        "sampled": root.context.is_sampled,
        "model": trace.model,
        "begun_at": trace.begun_at,
        "same_id_begun_at": [trace.begun_at],
        "duration_s": root.duration_s,
        "running": root.ended_s is None,
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
        "running": span.ended_s is None,
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
        "running": False,
        "attributes": dict(timing.attributes),
        "events": [],
        "error": timing.error or None,
        "reason": "",
    }
