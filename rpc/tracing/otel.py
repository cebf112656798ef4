"""Export of spans by OpenTelemetry's SDK, in OTLP. Only `factory.py` imports it, since the SDK is optional."""

import asyncio
import logging
import threading
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from baton.rpc.tracing.base import CLOSE_S
from baton.rpc.tracing.context import TraceContext
from baton.rpc.tracing.span import Span, SpanRecorder
from baton.rpc.tracing.span import SpanKind as Kind
from baton.settings.otlp_endpoint import OtlpEndpoint

logger = logging.getLogger(__name__)

KINDS = {Kind.INTERNAL: SpanKind.INTERNAL, Kind.SERVER: SpanKind.SERVER, Kind.CLIENT: SpanKind.CLIENT}
NO_CONTEXT = Context()


class GivenIds(IdGenerator):
    """The ids of the span that is being exported: it got them when it began."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_trace_id(self) -> int:
        """Return the id of the trace."""
        return self.trace_id

    def generate_span_id(self) -> int:
        """Return the id of the span."""
        return self.span_id


class OtelTracer:
    """The SDK's batch processor, whose queue is bounded and whose thread waits for the network; see `Tracer`.

    Spans reach the SDK when their request has ended. Until then they cost no call of it.
    """

    def __init__(self, exporter: SpanExporter, resource: Mapping[str, str], sample_ratio: float) -> None:
        """`resource`: attributes of the process, unless the environment has others (OTEL_RESOURCE_ATTRIBUTES).

        `sample_ratio`: share of the exported traces among those that begin here.
        """
        self._ids = GivenIds()
        self._sampler = ParentBased(TraceIdRatioBased(sample_ratio))
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,  # `is_sampled` has decided
            resource=Resource.create({**resource, **OTELResourceDetector().detect().attributes}),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("baton")

    def is_sampled(self, trace_id: int, parent: TraceContext | None) -> bool:
        """Return whether a trace is exported: as its parent is, or by the ratio."""
        context = NO_CONTEXT if parent is None else _inside(parent, is_remote=True)
        return self._sampler.should_sample(context, trace_id, "").decision is Decision.RECORD_AND_SAMPLE

    def export(self, recorder: SpanRecorder) -> None:
        """Queue the spans of a request that has ended. Logs its own errors: the request has its response."""
        try:
            for span in recorder.spans:
                self._export(span, recorder)
        except Exception:
            logger.exception("spans of the trace %032x are lost", recorder.root.context.trace_id)

    async def close(self) -> None:
        """Export what is queued. A thread that the exporter blocks for longer ends with the process."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(closed.set)

        threading.Thread(target=shut_down, name="traces", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_S):
                await closed.wait()
        except TimeoutError:
            return

    def _export(self, span: Span, recorder: SpanRecorder) -> None:
        self._ids.trace_id, self._ids.span_id = span.context.trace_id, span.context.span_id
        is_remote = span is recorder.root
        state = TraceState.from_header([span.context.state]) if span.context.state else None
        exported = self._tracer.start_span(
            span.name,
            NO_CONTEXT if span.parent is None else _inside(span.parent, is_remote, state),
            KINDS[span.kind],
            attributes=span.attributes,
            links=[Link(_span_context(each, is_remote=False)) for each in span.links],
            start_time=_nanoseconds(span.begun_s, recorder),
        )
        for event in span.events:
            exported.add_event(event.name, event.attributes, _nanoseconds(event.at_s, recorder))
        if span.error is not None:
            exported.set_attribute("error.type", span.error)
            exported.set_status(Status(StatusCode.ERROR, span.reason or None))
        assert span.ended_s is not None
        exported.end(_nanoseconds(span.ended_s, recorder))


def make_exporter(endpoint: OtlpEndpoint) -> SpanExporter:
    """Return an exporter. It reads headers, timeout, compression and certificates from OTEL_EXPORTER_OTLP_*."""
    if endpoint.is_grpc:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint.url, insecure=not endpoint.is_tls)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(endpoint.url)


def _inside(context: TraceContext, is_remote: bool, state: TraceState | None = None) -> Context:
    return set_span_in_context(NonRecordingSpan(_span_context(context, is_remote, state)), NO_CONTEXT)


def _span_context(context: TraceContext, is_remote: bool, state: TraceState | None = None) -> SpanContext:
    return SpanContext(context.trace_id, context.span_id, is_remote, TraceFlags(int(context.is_sampled)), state)


def _nanoseconds(at_s: float, recorder: SpanRecorder) -> int:
    return int((at_s + recorder.wall_offset_s) * 1e9)
