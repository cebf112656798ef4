"""W3C trace contexts in headers."""

import pytest
from opentelemetry.trace import TraceState

from baton.rpc.tracing.context import TraceContext, parse_context, read_context

TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
HEADER = f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01"


def test_a_context_survives_its_headers() -> None:
    context = parse_context(HEADER, "vendor=1")
    assert context == TraceContext(TRACE_ID, SPAN_ID, is_sampled=True, state="vendor=1")
    assert read_context(dict(context.metadata())) == context
    unsampled = parse_context(HEADER[:-2] + "00")
    assert unsampled is not None
    assert not unsampled.is_sampled
    assert parse_context(unsampled.traceparent) == unsampled


def test_a_child_is_another_span_of_the_trace() -> None:
    context = TraceContext(TRACE_ID, SPAN_ID, is_sampled=True, state="vendor=1")
    child = context.child()
    assert (child.trace_id, child.is_sampled, child.state) == (TRACE_ID, True, "vendor=1")
    assert child.span_id != SPAN_ID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        HEADER.upper(),
        HEADER + "-more",  # version 00 has four fields
        "ff" + HEADER[2:],
        f"00-{'0' * 32}-{SPAN_ID:016x}-01",
        f"00-{TRACE_ID:032x}-{'0' * 16}-01",
        HEADER[:-1],
        HEADER.replace("-", " "),
        "é" * 55,
    ],
)
def test_malformed_contexts_begin_a_new_trace(text: str) -> None:
    assert parse_context(text) is None


def test_later_versions_may_have_more_fields() -> None:
    context = parse_context("01" + HEADER[2:] + "-more")
    assert context is not None
    assert context.trace_id == TRACE_ID


@pytest.mark.parametrize(
    "state",
    ["a=" + "x" * 600, "a=\n", "a=é", "no pair", "a", "A=1", "a=1;b=2,=", "a=1,", "a=b=c", ",".join(["a=1"] * 33)],
)
def test_a_state_that_is_malformed_is_left_out(state: str) -> None:
    context = parse_context(HEADER, state)
    assert context is not None
    assert context.state == ""


@pytest.mark.parametrize("state", ["a=1", "tenant@system=value with spaces,b-2/*=~!", "a=1 ,\tb=2"])
def test_a_valid_state_is_what_the_sdk_reads_too(state: str, caplog: pytest.LogCaptureFixture) -> None:
    context = parse_context(HEADER, state)
    assert context is not None
    assert context.state == state.replace(" ,\t", ",")  # gRPC fails calls whose metadata have tabs
    assert len(TraceState.from_header([state])) == state.count(",") + 1
    assert not caplog.records
