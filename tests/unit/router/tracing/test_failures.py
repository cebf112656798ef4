"""Traces of requests that fail: which spans failed, and what is said of the request."""

from dataclasses import replace

import grpc
import pytest

from baton.engine.errors import InvalidRequest, QueueFull
from baton.protos import common_pb2
from baton.protos.router_pb2 import GenerateRequest
from baton.protos.router_pb2_grpc import InferenceStub
from baton.protos.worker_pb2 import GenerateCommand, RequestDelta, TimedSpan
from baton.router.policy.cluster import Plan
from baton.router.tracing.completion_trace import CompletionTrace
from baton.router.tracing.request_trace import RequestTrace
from baton.rpc.status import code_number
from baton.rpc.tracing.context import TraceContext
from baton.rpc.tracing.span import MAX_SPANS
from tests.otlp_collector import grpc_collector
from tests.unit.router.rigs.cluster_builder import worker
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker
from tests.unit.router.tracing.test_traces import ROOT, complete, has
from tests.unit.router.tracing.traced_cluster import PROMPT, SPEC, traced_cluster


def begun() -> RequestTrace:
    """Return the trace of a request that has just arrived."""
    return RequestTrace("chat", "one", TraceContext(1, 2, is_sampled=True), None)


@pytest.mark.parametrize("error", [InvalidRequest("a text that may quote the request"), QueueFull("the queue is full")])
async def test_an_error_that_is_not_retried_fails_its_attempt(error: Exception) -> None:
    refusing = ScriptedWorker()
    refusing.refusal = RequestDelta(
        finish_reason=common_pb2.FINISH_REASON_ERROR,
        error=common_pb2.RequestError(code=code_number(error), message=str(error)),
    )
    async with grpc_collector() as collector:
        async with running_router(refusing, otlp_traces_endpoint=collector.endpoint) as router:
            response = await router.http.post("/v1/completions", json={"prompt": "A prompt.", "max_tokens": 4})
            assert response.status_code >= 400
        await collector.until(has(ROOT))
    attempt, root = collector.named("attempt"), collector.named(ROOT)
    assert attempt.attributes["error.type"] == root.attributes["error.type"] == type(error).__name__
    assert not root.events  # nothing was retried
    assert b"quote the request" not in collector.raw


@pytest.mark.parametrize("headers", [{}, {"x-baton-resumable": "true", "x-request-id": "one"}])
async def test_an_error_in_the_middle_of_a_stream_fails_the_request(headers: dict[str, str]) -> None:
    async with grpc_collector() as collector:
        async with traced_cluster(collector.endpoint, "both", spec=replace(SPEC, step_s=0.02)) as cluster:
            given = {"x-baton-timeout": "0.5", **headers}
            response = await complete(cluster, given, max_tokens=5000, ignore_eos=True, stream=True)
            assert response.status_code == 200
            assert "error" in response.text
        await collector.until(has(ROOT))
    assert collector.named(ROOT).attributes["error.type"] == "DeadlineExceeded"


async def test_an_invalid_request_id_of_a_call_is_not_recorded() -> None:
    async with grpc_collector() as collector:
        async with (
            traced_cluster(collector.endpoint, "both") as cluster,
            grpc.aio.insecure_channel(cluster.router.grpc_address) as channel,
        ):
            request = GenerateRequest(text=PROMPT, request_id="a secret text " * 1000)
            with pytest.raises(grpc.aio.AioRpcError, match="request_id must be"):
                async for _ in InferenceStub(channel).Generate(request):
                    pass
        await collector.until(has(ROOT))
    assert collector.named(ROOT).is_error
    assert b"a secret text" not in collector.raw


def test_workers_do_not_record_an_attempt_that_the_router_dropped() -> None:
    trace = begun()
    plan = Plan(worker("decode-0"), None, None, "a reason")
    kept = CompletionTrace(trace, 0)
    kept.sent(command := GenerateCommand(), plan)
    assert command.traceparent
    for _ in range(MAX_SPANS):
        trace.recorder.begin("another")
    dropped = CompletionTrace(trace, 1)
    dropped.sent(command := GenerateCommand(), plan)
    assert not command.traceparent
    for each in (kept, dropped):
        each.note(RequestDelta(timings=[TimedSpan(name="decode")]))
    assert len(trace.worker_timings) == 1


def test_the_time_to_the_first_token_is_that_of_the_first_completion() -> None:
    trace = begun()
    trace.note_completion("stop", 3, trace.root.begun_s + 2.0)
    trace.note_completion("stop", 3, trace.root.begun_s + 1.0)
    assert trace.root.attributes["gen_ai.latency.time_to_first_token"] == pytest.approx(1.0)
