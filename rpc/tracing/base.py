"""The interface of a tracing system."""

from typing import Protocol

from baton.rpc.tracing.context import TraceContext
from baton.rpc.tracing.span import SpanRecorder


class Tracer(Protocol):
    """An exporter of spans. None of its methods waits for the network."""

    def is_sampled(self, trace_id: int, parent: TraceContext | None) -> bool:
        """Return whether a trace that reaches this process is exported; `parent`: None: it begins here."""
        ...

    def export(self, recorder: SpanRecorder) -> None:
        """Queue the spans of a request that has ended. Drops them if the queue is full."""
        ...

    async def close(self) -> None:
        """Export what is queued, for at most CLOSE_S."""
        ...


CLOSE_S = 2.0  # a tracing system that does not respond delays the end of a process by no more
