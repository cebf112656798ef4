"""The exporter of spans, with collectors that receive, hang and are down."""

import asyncio
import time

import pytest

from baton.extras import OPENTELEMETRY
from baton.rpc.tracing.context import TraceContext, new_span_id, new_trace_id
from baton.rpc.tracing.factory import open_tracer
from baton.rpc.tracing.span import MAX_EVENTS, MAX_SPANS, SpanKind, SpanRecorder
from baton.settings.values import OptionError
from tests.marks import each_value
from tests.otlp_collector import grpc_collector, http_collector, silent_collector

EXPORT_S = 9.0  # less than the time after which an exporter gives up; nothing may wait for it


def recorder(num_children: int = 1) -> SpanRecorder:
    """Return the spans of a request that has ended."""
    recorded = SpanRecorder("root", TraceContext(new_trace_id(), new_span_id(), is_sampled=True), None)
    for _ in range(num_children):
        recorded.begin("child", kind=SpanKind.CLIENT)
    recorded.end()
    return recorded


@pytest.mark.parametrize("collector", [grpc_collector, http_collector])
async def test_spans_arrive_as_they_were_recorded(collector: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=serving")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=named-by-the-environment")
    async with collector() as received:  # type: ignore[operator]  # one of the two
        tracer = open_tracer(received.endpoint, "baton-test", "one")
        assert tracer is not None
        recorded = SpanRecorder("root", TraceContext(5, 6, is_sampled=True), TraceContext(5, 4, is_sampled=True))
        child = recorded.begin("child", kind=SpanKind.CLIENT)
        child.attributes |= {"number": 1, "share": 0.5, "flag": True, "texts": ("a", "b")}
        child.links.append(TraceContext(5, 9, is_sampled=True))
        child.event("happened", {"why": "because"})
        child.fail("SomeError", "a reason")
        child.fail("LaterError")
        recorded.end()
        tracer.export(recorded)
        await tracer.close()
        root, child_received = received.named("root"), received.named("child")
    assert received.headers[0]["x-team"] == "serving"
    assert root.service == "named-by-the-environment"
    assert (int(root.trace_id, 16), int(root.span_id, 16), int(root.parent_id, 16)) == (5, 6, 4)
    assert (child_received.parent_id, int(child_received.span_id, 16)) == (root.span_id, child.context.span_id)
    assert child_received.attributes == {
        "number": 1,
        "share": 0.5,
        "flag": True,
        "texts": ["a", "b"],
        "error.type": "SomeError",
    }
    assert child_received.events == [("happened", {"why": "because"})]
    assert child_received.links == [f"{9:016x}"]
    assert (child_received.is_error, child_received.message) == (True, "a reason")
    assert abs(root.start_ns / 1e9 - time.time()) < 60
    assert root.start_ns <= child_received.start_ns <= child_received.end_ns <= root.end_ns


def test_a_share_of_traces_is_sampled_and_parents_decide_for_their_children() -> None:
    tracer = open_tracer("http://127.0.0.1:9", "baton-test", "one", sample_ratio=0.25)
    assert tracer is not None
    num_sampled = sum(tracer.is_sampled(new_trace_id(), None) for _ in range(4000))
    assert 800 < num_sampled < 1200
    for is_sampled in (True, False):
        parent = TraceContext(new_trace_id(), 1, is_sampled)
        assert tracer.is_sampled(parent.trace_id, parent) is is_sampled


@each_value
@pytest.mark.parametrize("scheme", ["grpc", "http"])
@pytest.mark.parametrize("is_silent", [True, False])
async def test_a_collector_that_hangs_or_is_down_delays_nothing(scheme: str, is_silent: bool) -> None:
    with silent_collector() as silent:
        tracer = open_tracer(f"{scheme}://{silent if is_silent else '127.0.0.1:9'}", "baton-test", "one")
        assert tracer is not None
        begun_s = time.monotonic()
        for _ in range(1200):  # more spans than the queue holds
            tracer.export(recorder())
        assert time.monotonic() - begun_s < EXPORT_S
        begun_s = time.monotonic()
        closing = asyncio.create_task(tracer.close())
        num_turns = 0
        while not closing.done():
            await asyncio.sleep(0.01)
            num_turns += 1
        assert time.monotonic() - begun_s < EXPORT_S
        assert num_turns > 5 or not is_silent  # the event loop goes on


def test_the_spans_and_events_of_a_request_are_bounded() -> None:
    recorded = recorder(2 * MAX_SPANS)
    assert len(recorded.spans) == MAX_SPANS
    assert recorded.root.attributes["baton.dropped_spans"] == MAX_SPANS + 1
    for _ in range(2 * MAX_EVENTS):
        recorded.root.event("again")
    assert len(recorded.root.events) == MAX_EVENTS


def test_without_an_endpoint_there_is_no_tracer() -> None:
    assert open_tracer(None, "baton-test", "one") is None
    assert OPENTELEMETRY.is_installed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),  # less than a batch
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli"),
    ],
)
def test_a_wrong_variable_of_the_environment_is_one_line(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match="a variable OTEL_"):
        open_tracer("grpc://127.0.0.1:9", "baton-test", "one")


def test_no_span_ends_before_it_begins() -> None:
    recorded = SpanRecorder("root", TraceContext(1, 2, is_sampled=True), None)
    recorded.root.end()
    late = recorded.begin("late")
    early = recorded.begin("early")
    early.end(early.begun_s - 1.0)
    recorded.end()
    assert late.duration_s == early.duration_s == 0.0
