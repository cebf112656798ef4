"""One request is one trace over router, decode worker, prefill worker and transfer, also if a worker dies."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import grpc
import httpx

from baton.protos.open_inference_pb2 import ModelInferRequest
from baton.protos.open_inference_pb2_grpc import GRPCInferenceServiceStub
from baton.protos.router_pb2 import GenerateRequest
from baton.protos.router_pb2_grpc import InferenceStub
from tests.otlp_collector import CollectedSpan, Collector, grpc_collector, http_collector
from tests.unit.router.dispatch.embedding_worker import EmbeddingWorker
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.tracing.traced_cluster import PROMPT, SPEC, TracedCluster, traced_cluster

ROOT = "text_completion bundled_model"
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"
WITH_PREFILL = {
    "text_completion bundled_model",
    *("admission", "tokenize", "plan", "attempt", "decode", "queue", "kv_transfer", "prefill", "compute"),
}


def has(*names: str) -> Callable[[list[CollectedSpan]], bool]:
    """Return the condition that spans of these names have arrived."""
    return lambda spans: {span.name for span in spans} >= set(names)


async def complete(cluster: TracedCluster, headers: dict[str, str] | None = None, **fields: object) -> httpx.Response:
    """Request a completion."""
    body = {"model": "bundled_model", "prompt": PROMPT, "max_tokens": 6, "temperature": 0, **fields}
    return await cluster.router.http.post("/v1/completions", json=body, headers=headers)


def parent(collector: Collector, span: CollectedSpan) -> CollectedSpan | None:
    """Return the span's parent; None if it was not exported."""
    return next((each for each in collector.spans if each.span_id == span.parent_id), None)


def path(collector: Collector, span: CollectedSpan | None) -> list[str]:
    """Return the names of a span and those above it."""
    names = []
    while span is not None:
        names.append(span.name)
        span = parent(collector, span)
    return names


async def test_one_request_is_one_trace() -> None:
    async with grpc_collector() as collector:
        headers = {"traceparent": TRACEPARENT, "tracestate": "vendor=1", "x-request-id": "my-request"}
        async with traced_cluster(collector.endpoint, "prefill", "decode") as cluster:
            response = await complete(cluster, headers)
            assert response.status_code == 200, response.text
        spans = await collector.until(has(*WITH_PREFILL))
    assert {span.name for span in spans} == WITH_PREFILL
    assert {span.trace_id for span in spans} == {TRACE_ID}
    root, prefill = collector.named(ROOT), collector.named("prefill")
    assert root.parent_id == PARENT_ID
    assert (root.service, prefill.service) == ("baton-router", "baton-worker")
    assert path(collector, collector.named("compute")) == [
        "compute",
        "prefill",
        "kv_transfer",
        "decode",
        "attempt",
        ROOT,
    ]
    assert [path(collector, span)[1:] for span in spans if span.name in ("admission", "tokenize", "plan")] == [
        [ROOT]
    ] * 3
    assert all(root.start_ns <= span.start_ns <= span.end_ns for span in spans)
    assert not any(span.is_error for span in spans)


async def test_spans_have_the_figures_of_their_part() -> None:
    async with http_collector() as collector:
        async with traced_cluster(collector.endpoint, "prefill", "decode") as cluster:
            response = await complete(cluster, {"x-request-id": "my-request"})
        await collector.until(has(*WITH_PREFILL))
    usage = response.json()["usage"]
    root = collector.named(ROOT).attributes
    assert root["gen_ai.operation.name"] == "text_completion"
    assert root["gen_ai.request.model"] == root["gen_ai.response.model"] == "bundled_model"
    assert root["gen_ai.request.id"] == "my-request"
    assert root["gen_ai.request.max_tokens"] == 6
    assert root["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert root["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 6
    assert root["gen_ai.response.finish_reasons"] == ["length"]
    assert 0 < root["gen_ai.latency.time_to_first_token"] <= root["gen_ai.latency.e2e"]
    plan = collector.named("plan").attributes
    assert (plan["baton.decode_worker"], plan["baton.prefill_worker"]) == ("decode-1", "prefill-0")
    assert plan["baton.plan"] == "remote"
    assert plan["baton.predicted_ttft_s"] > 0
    transfer = collector.named("kv_transfer").attributes
    assert transfer["baton.transport"] == "simulated"
    assert transfer["baton.num_blocks"] == -(-usage["prompt_tokens"] // SPEC.block_size)
    prefill = collector.named("prefill").attributes
    assert prefill["baton.computed_tokens"] == usage["prompt_tokens"]
    assert prefill["gen_ai.latency.time_in_queue"] >= 0
    decode = collector.named("decode")
    assert decode.attributes["gen_ai.usage.output_tokens"] == 6
    assert decode.attributes["baton.preemptions"] == 0
    assert [name for name, _ in decode.events] == ["first_token"]


async def test_a_dead_decode_worker_is_an_attempt_that_the_next_links_to() -> None:
    async with grpc_collector() as collector:
        slow = replace(SPEC, step_s=0.02)
        async with traced_cluster(collector.endpoint, "prefill", "decode", "decode", spec=slow) as cluster:
            asking = asyncio.create_task(complete(cluster, max_tokens=60))
            busy = None
            while busy is None:
                await asyncio.sleep(0.005)
                decoding = (each for each in cluster.workers if each.config.role == "decode")
                busy = next((each for each in decoding if each.core.counters.generated_tokens > 2), None)
            await busy.stop()
            response = await asking
        assert response.json()["usage"]["completion_tokens"] == 60
        await collector.until(lambda spans: sum(span.name == "attempt" for span in spans) == 2)
        await collector.until(lambda spans: sum(span.name == "decode" for span in spans) == 2)
    first, second = sorted((span for span in collector.spans if span.name == "attempt"), key=lambda span: span.start_ns)
    assert {span.trace_id for span in collector.spans} == {first.trace_id}
    assert first.is_error
    assert first.attributes["error.type"] == "WorkerLost"
    assert busy.address in first.message
    assert second.links == [first.span_id]
    assert second.attributes["baton.attempt"] == 1
    root = collector.named(ROOT)
    [(name, attributes)] = root.events
    assert (name, attributes["error.type"]) == ("retry", "WorkerLost")
    assert not root.is_error
    assert {span.parent_id for span in collector.spans if span.name == "decode"} == {first.span_id, second.span_id}


async def test_an_abort_by_the_client_ends_the_trace_at_both_ends() -> None:
    async with grpc_collector() as collector:
        async with traced_cluster(collector.endpoint, "both", spec=replace(SPEC, step_s=0.02)) as cluster:
            body = {"model": "bundled_model", "prompt": PROMPT, "max_tokens": 5000, "stream": True}
            async with cluster.router.http.stream("POST", "/v1/completions", json=body) as response:
                async for _ in response.aiter_bytes():
                    break
        await collector.until(has(ROOT, "decode"))
    root, decode = collector.named(ROOT), collector.named("decode")
    assert root.attributes["gen_ai.response.finish_reasons"] == ["abort"]
    assert [name for name, _ in root.events] == ["client_gone"]
    assert not root.is_error
    assert decode.attributes["gen_ai.response.finish_reasons"] == ["abort"]
    assert path(collector, collector.named("compute")) == ["compute", "decode", "attempt", ROOT]


async def test_rejected_requests_have_an_error_status() -> None:
    async with grpc_collector() as collector:
        async with traced_cluster(collector.endpoint, "both", max_inflight=1, max_queue=0) as cluster:
            statuses = [(await complete(cluster, max_tokens=-1)).status_code]
            statuses.append((await complete(cluster, model="the-secret-of-the-caller")).status_code)
            full = [complete(cluster, max_tokens=50, ignore_eos=True) for _ in range(4)]
            statuses += [response.status_code for response in await asyncio.gather(*full)]
        assert sorted(set(statuses)) == [200, 400, 404, 429]
        await collector.until(lambda spans: sum(not span.name.startswith("a") for span in spans) >= len(statuses))
    roots = [span for span in collector.spans if span.name.startswith("text_completion")]
    found = [span.attributes.get("http.response.status_code", 200) for span in roots]
    assert sorted(found) == sorted(statuses)
    assert all(span.is_error is (span.attributes.get("http.response.status_code", 200) != 200) for span in roots)
    [refused] = {
        span.attributes["error.type"] for span in roots if span.attributes.get("http.response.status_code") == 429
    }
    assert refused == "Overloaded"
    assert b"the-secret-of-the-caller" not in collector.raw


async def test_each_completion_and_each_prompt_has_its_own_attempt() -> None:
    async with grpc_collector() as collector:
        async with traced_cluster(collector.endpoint, "both") as cluster:
            response = await complete(cluster, prompt=[PROMPT, "Another prompt."], n=2, max_tokens=3, temperature=1)
            assert len(response.json()["choices"]) == 4
        await collector.until(has(ROOT))
    root = collector.named(ROOT)
    attempts = [span for span in collector.spans if span.name == "attempt"]
    assert sorted(span.attributes["baton.completion"] for span in attempts) == [0, 0, 1, 1]
    assert {span.parent_id for span in attempts} == {root.span_id}
    assert root.attributes["gen_ai.response.finish_reasons"] == ["length"] * 4
    assert root.attributes["gen_ai.usage.output_tokens"] == 12
    assert root.attributes["gen_ai.request.choice.count"] == 2
    assert root.attributes["gen_ai.usage.input_tokens"] == response.json()["usage"]["prompt_tokens"]
    assert sum(span.name == "tokenize" for span in collector.spans) == 2
    assert sum(span.name == "decode" for span in collector.spans) == 4


async def test_every_api_that_generates_is_traced() -> None:
    chat = {"model": "bundled_model", "messages": [{"role": "user", "content": "A question."}], "max_tokens": 3}
    response = {"model": "bundled_model", "input": "A question.", "max_output_tokens": 3}
    async with grpc_collector() as collector:
        async with traced_cluster(collector.endpoint, "both") as cluster:
            http = cluster.router.http
            for path, body in (("chat/completions", chat), ("messages", chat), ("responses", response)):
                assert (await http.post(f"/v1/{path}", json=body)).status_code == 200, path
            generate = {"text_input": "A prompt.", "parameters": {"max_tokens": 3}}
            assert (await http.post("/v2/models/bundled_model/generate", json=generate)).status_code == 200
            async with grpc.aio.insecure_channel(cluster.router.grpc_address) as channel:
                infer = ModelInferRequest(model_name="bundled_model")
                infer.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(
                    b"A prompt."
                )
                await GRPCInferenceServiceStub(channel).ModelInfer(infer)
            assert (await http.post("/tokenize", json={"prompt": "A prompt."})).status_code == 200
        await collector.until(lambda spans: sum(span.name == "decode" for span in spans) == 5)
    roots = sorted(span.name for span in collector.spans if not span.parent_id)
    assert roots == ["chat bundled_model"] * 3 + [ROOT] * 2
    assert len({span.trace_id for span in collector.spans}) == 5


async def test_embeddings_are_traced_at_the_router() -> None:
    async with grpc_collector() as collector:
        async with running_router(EmbeddingWorker(), otlp_traces_endpoint=collector.endpoint) as router:
            body = {"model": "bundled_model", "input": ["One.", "Two."]}
            response = await router.http.post("/v1/embeddings", json=body)
            assert response.status_code == 200, response.text
        await collector.until(has("embeddings bundled_model"))
    root = collector.named("embeddings bundled_model")
    assert root.attributes["gen_ai.usage.input_tokens"] == response.json()["usage"]["prompt_tokens"]
    assert {span.name for span in collector.spans if span.parent_id == root.span_id} == {"admission", "embed"}


async def test_grpc_calls_carry_the_context_in_metadata() -> None:
    async with grpc_collector() as collector:
        async with (
            traced_cluster(collector.endpoint, "both") as cluster,
            grpc.aio.insecure_channel(cluster.router.grpc_address) as channel,
        ):
            request = GenerateRequest(text=PROMPT, sampling={"max_tokens": 3}, request_id="over-grpc")
            async for _ in InferenceStub(channel).Generate(request, metadata=(("traceparent", TRACEPARENT),)):
                pass
        await collector.until(has(ROOT, "decode"))
    assert {span.trace_id for span in collector.spans} == {TRACE_ID}
    assert collector.named(ROOT).attributes["gen_ai.request.id"] == "over-grpc"


async def test_neither_prompts_nor_outputs_nor_keys_are_exported() -> None:
    key = "sk-baton-" + "k" * 43
    async with grpc_collector() as collector:
        async with traced_cluster(collector.endpoint, "prefill", "decode", api_key=(key,)) as cluster:
            headers = {"authorization": f"Bearer {key}"}
            cluster.router.http.headers.update(headers)
            answers = [await complete(cluster, user="a-user", cache_salt="the-salt", stop=["a-stop-string"])]
            answers.append(await complete(cluster, stop=[7], temperature="a-hot-one"))
            chat = {"model": "bundled_model", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8}
            answers.append(await cluster.router.http.post("/v1/chat/completions", json=chat))
            assert [each.status_code for each in answers] == [200, 400, 200]
        await collector.until(has(ROOT, "chat bundled_model", "text_completion"))
        await collector.until(lambda spans: sum(span.name == "prefill" for span in spans) == 2)
    output = answers[0].json()["choices"][0]["text"]
    assert len(output) > 5
    secrets = ("quiet harbour", key, key[9:], output, "a-user", "the-salt", "a-stop-string", "a-hot-one")
    assert not [text for text in secrets if text.encode() in collector.raw]


async def test_the_share_of_sampled_traces_and_the_parents_decision() -> None:
    async with grpc_collector() as collector:
        async with traced_cluster(collector.endpoint, "both", trace_sample_ratio=0.0) as cluster:
            await complete(cluster)
            await complete(cluster, {"traceparent": f"00-{'1' * 32}-{PARENT_ID}-00"})
            await complete(cluster, {"traceparent": "not a context"})
            await complete(cluster, {"traceparent": TRACEPARENT})
        await collector.until(has(ROOT, "decode"))
    assert {span.trace_id for span in collector.spans} == {TRACE_ID}


async def test_histograms_have_exemplars_of_sampled_requests() -> None:
    accept = {"accept": "application/openmetrics-text"}
    page = ""
    async with (
        grpc_collector() as collector,
        traced_cluster(collector.endpoint, "prefill", "decode") as cluster,
        asyncio.timeout(60),
    ):
        await complete(cluster, {"traceparent": TRACEPARENT})
        while "handover_seconds" not in page:  # the decode worker reports it a moment later
            page = (await cluster.router.http.get("/metrics", headers=accept)).text
        plain = (await cluster.router.http.get("/metrics")).text
    marked = [line.partition("_bucket")[0] for line in page.splitlines() if TRACE_ID in line]
    assert Counter(marked) == {
        "baton:time_to_first_token_seconds": 1,
        "baton:e2e_request_latency_seconds": 1,
        "baton:handover_seconds": 4,  # its phases
    }
    assert TRACE_ID not in plain


async def test_handovers_of_a_trace_that_is_not_exported_have_no_exemplar() -> None:
    page = ""
    async with traced_cluster(None, "prefill", "decode") as cluster, asyncio.timeout(60):
        await complete(cluster, {"traceparent": TRACEPARENT})
        while "handover_seconds" not in page:
            page = (await cluster.router.http.get("/metrics", headers={"accept": "application/openmetrics-text"})).text
    assert TRACE_ID not in page
