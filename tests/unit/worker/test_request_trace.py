"""Spans of a worker's request, made from the times of its steps."""

import pytest

from baton.engine.config import EngineConfig
from baton.engine.errors import QueueFull
from baton.engine.outputs import RequestOutput, SampledToken, StepOutput
from baton.engine.request import RequestId
from baton.protos.worker_pb2 import TimedSpan
from baton.rpc.tracing.context import TraceContext
from baton.rpc.tracing.span import Span, SpanRecorder
from baton.settings.values import OptionError
from baton.worker.config import WorkerConfig
from baton.worker.request_trace import NO_TRACING, WorkerTrace, WorkerTracing
from baton.worker.server import serve_worker

PARENT = TraceContext(1, 2, is_sampled=True, state="a=1")


class KeptSpans:
    """A tracer that keeps what is exported."""

    def __init__(self) -> None:
        self.exported: list[SpanRecorder] = []

    def is_sampled(self, trace_id: int, parent: TraceContext | None) -> bool:
        """Return True."""
        return True

    def export(self, recorder: SpanRecorder) -> None:
        """Keep the spans."""
        self.exported.append(recorder)

    async def close(self) -> None:
        """Do nothing."""


def begun(tracer: KeptSpans, parent: TraceContext = PARENT) -> WorkerTrace:
    """Return the trace of a request that has just arrived."""
    trace = WorkerTracing("decode-0", tracer).begin("decode", parent.traceparent, parent.state)
    assert trace is not None
    return trace


def step(trace: WorkerTrace, begin_s: float, end_s: float, sampled: bool = True) -> None:
    """Record a step, with times from the request's arrival."""
    arrived_s = trace.root.begun_s
    output = RequestOutput(RequestId("r"), 1, SampledToken(5) if sampled else None)
    trace.note_step(StepOutput([output], started_at_s=arrived_s + begin_s, finished_at_s=arrived_s + end_s), output)


def named(trace: WorkerTrace, name: str) -> Span:
    """Return the span with a name."""
    [span] = [span for span in trace.recorder.spans if span.name == name]
    return span


def test_the_queue_ends_with_the_first_step_and_the_prompt_with_the_first_token() -> None:
    tracer = KeptSpans()
    trace = begun(tracer)
    step(trace, 0.5, 0.6, sampled=False)
    step(trace, 0.6, 0.8)
    trace.note_tokens(1)
    step(trace, 0.9, 1.0)
    trace.note_tokens(1)
    trace.end()
    assert [span.name for span in trace.recorder.spans] == ["decode", "queue", "compute"]
    assert named(trace, "queue").duration_s == pytest.approx(0.5)
    compute = named(trace, "compute")
    assert (compute.begun_s - trace.root.begun_s, compute.duration_s) == pytest.approx((0.5, 0.3))
    assert compute.attributes["baton.num_steps"] == 2
    attributes = trace.root.attributes
    assert attributes["gen_ai.latency.time_in_queue"] == pytest.approx(0.5)
    assert attributes["gen_ai.latency.time_in_model_prefill"] == pytest.approx(0.3)
    assert attributes["gen_ai.usage.output_tokens"] == 2
    assert tracer.exported == [trace.recorder]
    assert trace.root.parent == PARENT
    assert {span.context.trace_id for span in trace.recorder.spans} == {PARENT.trace_id}


def test_tokens_of_a_prompt_that_was_computed_elsewhere_are_no_computation() -> None:
    trace = begun(KeptSpans())
    trace.admitted(trace.root.begun_s + 0.1)
    span = trace.begin_transfer("prefill-0")
    trace.note_tokens(1)
    trace.note_elsewhere(span, [TimedSpan(name="prefill", worker_id="prefill-0", start_s=0.25, duration_s=0.5)])
    step(trace, 0.9, 1.0)
    assert [each.name for each in trace.recorder.spans] == ["decode", "queue", "kv_transfer"]
    timings = {timing.name: timing for timing in trace.timings()}
    offset_s = span.begun_s - trace.root.begun_s
    assert timings["prefill"].start_s == pytest.approx(0.25 + offset_s, abs=1e-4)
    assert (timings["decode"].depth, timings["queue"].depth, timings["prefill"].depth) == (0, 1, 2)
    assert timings["queue"].worker_id == "decode-0"


def test_only_sampled_traces_are_exported() -> None:
    tracer = KeptSpans()
    trace = begun(tracer, TraceContext(1, 2, is_sampled=False))
    trace.end()
    assert not tracer.exported
    assert trace.timings()
    begun_without = NO_TRACING.begin("decode", PARENT.traceparent, "")
    assert begun_without is not None
    begun_without.end()


@pytest.mark.parametrize("traceparent", ["", "no context"])
def test_a_request_without_a_context_is_not_recorded(traceparent: str) -> None:
    assert NO_TRACING.begin("decode", traceparent, "") is None


def test_a_failed_step_fails_the_request() -> None:
    trace = begun(KeptSpans())
    output = RequestOutput(RequestId("r"), 0, error=QueueFull("a text that may quote the request"))
    trace.note_step(StepOutput([output]), output)
    trace.end()
    assert (trace.root.error, trace.root.reason) == ("QueueFull", "")
    assert named(trace, "queue").error == "QueueFull"


async def test_a_worker_that_cannot_export_ends_before_it_loads_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")  # less than a batch
    endpoint = "http://127.0.0.1:9"
    config = WorkerConfig(role="both", worker_id="a", engine=EngineConfig(model="/none"), otlp_traces_endpoint=endpoint)
    with pytest.raises(OptionError, match="a variable OTEL_"):
        await serve_worker(config, {})
