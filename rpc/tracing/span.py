"""Spans of one request in one process."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from baton.rpc.tracing.context import TraceContext

Attribute = str | bool | int | float | Sequence[str]

MAX_SPANS = 256  # of one request in one process; a request with many completions may have more
NO_ATTRIBUTES: Mapping[str, Attribute] = {}
MAX_EVENTS = 64  # of one span


class SpanKind(Enum):
    """Role of a span's process in the call that the span stands for."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at one moment of a span."""

    name: str
    at_s: float  # monotonic clock
    attributes: Mapping[str, Attribute]


@dataclass(slots=True, eq=False)
class Span:
    """A named period. Attributes never have text of prompts, outputs or keys."""

    name: str
    context: TraceContext
    parent: TraceContext | None  # None: the trace begins here
    kind: SpanKind
    begun_s: float  # monotonic clock
    attributes: dict[str, Attribute] = field(default_factory=dict)
    events: list[SpanEvent] = field(default_factory=list)
    links: list[TraceContext] = field(default_factory=list)  # other spans that led to this one
    ended_s: float | None = None
    error: str | None = None  # class of the error that ended it; None: it did not fail
    reason: str = ""  # why it failed, as text without any content of the request

    def event(self, name: str, attributes: Mapping[str, Attribute] = NO_ATTRIBUTES) -> None:
        """Record an event that happens now; no-op once there are MAX_EVENTS."""
        if len(self.events) < MAX_EVENTS:
            self.events.append(SpanEvent(name, time.monotonic(), attributes))

    def fail(self, error: str, reason: str = "") -> None:
        """Mark it as failed; the first error counts."""
        if self.error is None:
            self.error, self.reason = error, reason

    def end(self, at_s: float | None = None) -> None:
        """Set the end, unless it is set; never before the start."""
        if self.ended_s is None:
            self.ended_s = max(self.begun_s, time.monotonic() if at_s is None else at_s)

    @property
    def duration_s(self) -> float:
        """Seconds from its start to its end; to now while it is open."""
        return (time.monotonic() if self.ended_s is None else self.ended_s) - self.begun_s


class SpanRecorder:
    """The spans of one request in one process. They are exported together once the request has ended."""

    def __init__(
        self, name: str, context: TraceContext, parent: TraceContext | None, begun_s: float | None = None
    ) -> None:
        """Begin the root, a server span. `begun_s`: monotonic clock; None: now."""
        self.wall_offset_s = time.time() - time.monotonic()  # a step of the wall clock must not change durations
        begun_s = time.monotonic() if begun_s is None else begun_s
        self.root = Span(name, context, parent, SpanKind.SERVER, begun_s)
        self.spans = [self.root]
        self.num_dropped = 0

    def begin(
        self, name: str, parent: Span | None = None, kind: SpanKind = SpanKind.INTERNAL, at_s: float | None = None
    ) -> Span:
        """Return a new span below `parent` (None: the root). It is dropped if there are MAX_SPANS."""
        above = (parent or self.root).context
        span = Span(name, above.child(), above, kind, time.monotonic() if at_s is None else at_s)
        if len(self.spans) < MAX_SPANS:
            self.spans.append(span)
        else:
            self.num_dropped += 1
        return span

    def keeps(self, span: Span) -> bool:
        """Return whether the span that began last is among the spans, and was not dropped."""
        return self.spans[-1] is span

    @contextmanager
    def span(self, name: str) -> Iterator[Span]:
        """Begin a span below the root that ends, and fails, with the block."""
        span = self.begin(name)
        try:
            yield span
        except BaseException as error:
            span.fail(type(error).__name__)
            raise
        finally:
            span.end()

    def end(self, at_s: float | None = None) -> None:
        """End the root and what is still open; such spans have the root's error."""
        self.root.end(at_s)
        if self.num_dropped:
            self.root.attributes["baton.dropped_spans"] = self.num_dropped
        for span in self.spans:
            if span.ended_s is None:
                span.end(self.root.ended_s)
                if self.root.error is not None:
                    span.fail(self.root.error, self.root.reason)
