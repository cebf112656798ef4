"""The W3C context of a trace (https://www.w3.org/TR/trace-context/), in headers, metadata and commands."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"  # headers, and keys of gRPC metadata
FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
SAMPLED = 1
MAX_STATE_CHARS = 512  # minimum length that a tracing system must propagate
KEY = r"(?:[a-z][_0-9a-z\-*/]{0,255}|[a-z0-9][_0-9a-z\-*/]{0,240}@[a-z][_0-9a-z\-*/]{0,13})"
VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
STATE = re.compile(rf"{KEY}={VALUE}(?:[ \t]*,[ \t]*{KEY}={VALUE}){{0,31}}")
COMMA = re.compile(r"[ \t]*,[ \t]*")  # gRPC fails calls whose metadata have tabs


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The identity of a span, and whether its trace is exported."""

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""  # the tracestate, passed on without spaces around its commas

    @property
    def traceparent(self) -> str:
        """The header's value."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"

    def child(self) -> "TraceContext":
        """Return the context of a new span of the same trace."""
        return TraceContext(self.trace_id, new_span_id(), self.is_sampled, self.state)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a gRPC call made by the span."""
        state = ((TRACESTATE, self.state),) if self.state else ()
        return ((TRACEPARENT, self.traceparent), *state)


def new_trace_id() -> int:
    """Return a random id of a trace; ids need to be unique, not secret."""
    return random.getrandbits(128) or 1


def new_span_id() -> int:
    """Return a random id of a span."""
    return random.getrandbits(64) or 1


def parse_context(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """Return the context that the two headers describe; None for malformed ones, as the specification demands."""
    match = FORM.fullmatch(traceparent.strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    is_valid = len(tracestate) <= MAX_STATE_CHARS and STATE.fullmatch(tracestate)
    state = COMMA.sub(",", tracestate) if is_valid else ""
    return TraceContext(trace_id, span_id, bool(int(match[4], 16) & SAMPLED), state)


def read_context(headers: Mapping[str, str]) -> TraceContext | None:
    """Return the context in headers or metadata, by lower-case name; None if there is none or it is malformed."""
    traceparent = headers.get(TRACEPARENT)
    return None if traceparent is None else parse_context(traceparent, headers.get(TRACESTATE, ""))
