"""Spans of one request at a worker, made from the times of its steps; the engine knows nothing of them."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from baton.engine.outputs import RequestOutput, StepOutput
from baton.protos.worker_pb2 import TimedSpan
from baton.rpc.handover_times import TRACE_ID_BYTES
from baton.rpc.peers import Context
from baton.rpc.tracing.base import Tracer
from baton.rpc.tracing.context import TraceContext, parse_context, read_context
from baton.rpc.tracing.span import Attribute, Span, SpanKind, SpanRecorder


class WorkerTrace:
    """A request at a worker: its queue, the computation of its prompt here if there is any, and its tokens."""

    def __init__(self, name: str, parent: TraceContext, worker_id: str, tracer: Tracer | None) -> None:
        """Begin the root span. `tracer` exports the spans at the end; None: they are only returned as timings."""
        self.recorder = SpanRecorder(name, parent.child(), parent)
        self.root = self.recorder.root
        self.root.attributes["baton.worker_id"] = worker_id
        self._worker_id = worker_id
        self._tracer = tracer
        self._queue = self.recorder.begin("queue", at_s=self.root.begun_s)
        self._compute: Span | None = None  # computation of the prompt
        self._num_steps = 0  # steps that computed the prompt
        self._num_tokens = 0
        self._first_s = 0.0  # time of the first token
        self._elsewhere: list[TimedSpan] = []  # timings from other workers

    @property
    def exemplar(self) -> bytes | None:
        """The trace's id for metrics; None: the trace is not exported."""
        context = self.root.context
        return context.trace_id.to_bytes(TRACE_ID_BYTES) if context.is_sampled else None

    def admitted(self, at_s: float) -> None:
        """Record that the request left the queue; only the first time counts. Monotonic clock."""
        self._queue.end(max(at_s, self.root.begun_s))

    def note_step(self, step: StepOutput, output: RequestOutput) -> None:
        """Record a step with the request. Until the first token, its steps compute the prompt."""
        if output.error is not None:
            self.failed(output.error)
            return
        if self._num_tokens:
            return
        self.admitted(step.started_at_s)
        if self._compute is None:
            begun_s = max(step.started_at_s, self.root.begun_s)
            self._compute = self.recorder.begin("compute", at_s=begun_s)
        self._num_steps += 1
        self._compute.attributes["baton.num_steps"] = self._num_steps
        if output.sampled is not None:
            self._compute.end(step.finished_at_s)

    def note_tokens(self, num_tokens: int) -> None:
        """Record new output tokens. The prompt is computed."""
        if not self._num_tokens:
            self.root.event("first_token")
            self._first_s = time.monotonic()
            if self._compute is not None:
                self._compute.end()
        self._num_tokens += num_tokens

    def failed(self, error: BaseException) -> None:
        """Record the error that ends the request; its text may quote the request."""
        self.root.fail(type(error).__name__)
        self.root.attributes.setdefault("gen_ai.response.finish_reasons", ("error",))

    def begin_transfer(self, worker_id: str) -> Span:
        """Begin the span of a handover from a prefill worker."""
        span = self.recorder.begin("kv_transfer", kind=SpanKind.CLIENT)
        span.attributes["baton.peer"] = worker_id
        return span

    def note_elsewhere(self, span: Span, timings: Iterable[TimedSpan]) -> None:
        """Keep the timings of a call that `span` stands for, which count from the call's arrival."""
        for timing in timings:
            timing.start_s += span.begun_s - self.root.begun_s
            timing.depth += 2
            self._elsewhere.append(timing)

    def timings(self) -> list[TimedSpan]:
        """Return the spans so far as messages, those of other workers included."""
        own = [self._timing(span) for span in self.recorder.spans]
        return own + self._elsewhere

    def end(self) -> None:
        """End all spans, and export them if the trace is sampled."""
        self.recorder.end()
        attributes, ended_s = self.root.attributes, self.root.begun_s + self.root.duration_s
        attributes["gen_ai.latency.time_in_queue"] = self._queue.duration_s
        if self._compute is not None:
            attributes["gen_ai.latency.time_in_model_prefill"] = self._compute.duration_s
        if self._num_tokens:
            attributes["gen_ai.usage.output_tokens"] = self._num_tokens
            attributes["gen_ai.latency.time_in_model_decode"] = ended_s - self._first_s
        if self._tracer is not None and self.root.context.is_sampled:
            self._tracer.export(self.recorder)

    def _timing(self, span: Span) -> TimedSpan:
        return TimedSpan(
            name=span.name,
            worker_id=self._worker_id,
            start_s=span.begun_s - self.root.begun_s,
            duration_s=span.duration_s,
            attributes={name: attribute_text(value) for name, value in span.attributes.items()},
            error=span.error or "",
            depth=int(span is not self.root),
        )


def attribute_text(value: Attribute) -> str:
    """Return an attribute as text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) if isinstance(value, str | int) else ", ".join(value)


@dataclass(frozen=True, slots=True)
class WorkerTracing:
    """The traces of a worker's requests."""

    worker_id: str = ""
    tracer: Tracer | None = field(default=None, repr=False)  # None: nothing is exported

    def begin(self, name: str, traceparent: str, tracestate: str) -> WorkerTrace | None:
        """Return the trace of a request that has just arrived; None if it has no valid context."""
        parent = parse_context(traceparent, tracestate) if traceparent else None
        return None if parent is None else WorkerTrace(name, parent, self.worker_id, self.tracer)

    def begin_call(self, name: str, call: Context) -> WorkerTrace | None:
        """Return the trace of a gRPC call; None if its metadata has no valid context."""
        parent = read_context({key: value for key, value in call.invocation_metadata() or () if isinstance(value, str)})
        return None if parent is None else WorkerTrace(name, parent, self.worker_id, self.tracer)


NO_TRACING = WorkerTracing()
