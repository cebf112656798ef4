"""Generation over gRPC: the same tokens as over HTTP, errors as statuses."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.protos import common_pb2
from baton.protos.router_pb2 import GenerateRequest, GenerateResponse
from baton.protos.router_pb2_grpc import InferenceStub
from baton.router import app
from tests.unit.router.http.test_uploads import held_bytes, until_held
from tests.unit.router.rigs.running_router import running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

SAMPLING = common_pb2.SamplingParams(seed=9, max_tokens=6)


async def generate(address: str, **fields: Any) -> list[GenerateResponse]:
    async with grpc.aio.insecure_channel(address) as channel:
        return [response async for response in InferenceStub(channel).Generate(GenerateRequest(**fields))]


async def test_the_same_as_over_http() -> None:
    async with running_router(ScriptedWorker()) as router:
        body = {"prompt": "hello world", "seed": 9, "max_tokens": 6, "n": 2, "return_token_ids": True}
        http = (await router.http.post("/v1/completions", json=body)).json()
        responses = await generate(router.grpc_address, text="hello world", sampling=SAMPLING, n=2, request_id="mine")
        for index, choice in enumerate(http["choices"]):
            mine = [response for response in responses if response.index == index]
            assert "".join(response.text for response in mine) == choice["text"]
            assert [token for response in mine for token in response.token_ids] == choice["token_ids"]
            assert mine[-1].finish_reason == common_pb2.FINISH_REASON_LENGTH
            assert mine[0].served_by.decode_worker == "decode-0"
        assert {response.request_id for response in responses} == {"mine"}
        assert responses[-1].usage.completion_tokens == 12
        assert responses[-1].usage.prompt_tokens == http["usage"]["prompt_tokens"]
        assert not any(response.HasField("usage") for response in responses[:-1])


async def test_token_ids_logprobs_and_stop() -> None:
    async with running_router(ScriptedWorker()) as router:
        sampling = common_pb2.SamplingParams(seed=9, max_tokens=6, logprobs=1, prompt_logprobs=1)
        ids = {"ids": [300, 301, 302]}
        responses = await generate(router.grpc_address, token_ids=ids, sampling=sampling)
        assert sum(len(response.logprobs) for response in responses) == 6
        assert sum(len(response.prompt_logprobs) for response in responses) == 2
        text = "".join(response.text for response in responses)
        stopped = await generate(router.grpc_address, token_ids=ids, sampling=sampling, stop=[text[4:7]])
        assert "".join(response.text for response in stopped) == text[: text.index(text[4:7])]
        assert stopped[-1].finish_reason == common_pb2.FINISH_REASON_STOP


async def test_the_last_message_of_each_completion_names_its_workers() -> None:
    async with running_router(ScriptedWorker()) as router:
        whole = await generate(router.grpc_address, text="a", sampling=SAMPLING, n=3)
        text = "".join(response.text for response in whole if response.index == 0)
        stopped = await generate(router.grpc_address, text="a", sampling=SAMPLING, stop=[text[-3:]], n=3)
        for responses in (whole, stopped):
            last = {response.index: response for response in responses}
            assert len(last) == 3
            assert all(response.finish_reason and response.served_by.decode_worker for response in last.values())


async def test_the_last_message_of_a_failed_request_names_its_workers() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with (
        running_router(worker, failover_attempts=0) as router,
        grpc.aio.insecure_channel(router.grpc_address) as channel,
    ):
        call = InferenceStub(channel).Generate(GenerateRequest(text="a", sampling=SAMPLING))
        assert (await call.read()).token_ids
        await worker.stop()
        last = await call.read()
        assert last.finish_reason == common_pb2.FINISH_REASON_ERROR
        assert last.served_by.decode_worker == "decode-0"
        assert await call.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "text or token_ids is required"),
        ({"text": "a", "model": "other"}, grpc.StatusCode.NOT_FOUND, "does not exist"),
        ({"text": "a", "n": 1000}, grpc.StatusCode.INVALID_ARGUMENT, "n is 1000"),
        ({"text": "a", "stop": [""]}, grpc.StatusCode.INVALID_ARGUMENT, "must have 1 to 1024 characters"),
        ({"text": "a", "stop": ["x" * 1025]}, grpc.StatusCode.INVALID_ARGUMENT, "must have 1 to 1024 characters"),
        ({"text": "a", "sampling": {"top_p": 2}}, grpc.StatusCode.INVALID_ARGUMENT, "top_p is 2"),
        ({"text": "a", "hints": {"plan": "both"}}, grpc.StatusCode.INVALID_ARGUMENT, "must be local or remote"),
        ({"text": "a", "cache_salt": "x" * 1025}, grpc.StatusCode.INVALID_ARGUMENT, "cache_salt has 1025 characters"),
        ({"text": "a", "request_id": "a\nb"}, grpc.StatusCode.INVALID_ARGUMENT, "request_id must be"),
        ({"token_ids": {"ids": [300] * 512}}, grpc.StatusCode.INVALID_ARGUMENT, "However, your request has 512"),
        (
            {"text": "a", "sampling": {"logit_bias": dict.fromkeys(range(4097), 1.0)}},
            grpc.StatusCode.INVALID_ARGUMENT,
            "logit_bias has 4097 entries",
        ),
        (
            {"text": "a", "sampling": {"stop_token_ids": range(4097)}},
            grpc.StatusCode.INVALID_ARGUMENT,
            "stop_token_ids has 4097 entries",
        ),
        ({"text": "a", "timeout_s": -1}, grpc.StatusCode.INVALID_ARGUMENT, "timeout_s is -1"),
    ],
)
async def test_errors_are_statuses(fields: dict[str, Any], code: grpc.StatusCode, message: str) -> None:
    async with running_router(ScriptedWorker()) as router:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(router.grpc_address, **fields)
        assert caught.value.code() is code
        assert message in (caught.value.details() or "")


async def test_a_request_that_is_too_large_ends_nothing_but_itself() -> None:
    async with running_router(ScriptedWorker(), max_body_bytes=2000) as router:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(router.grpc_address, text="a" * 3000)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await generate(router.grpc_address, text="a", sampling=SAMPLING)


async def test_a_request_is_pinned_by_its_hints() -> None:
    workers = [ScriptedWorker("decode-0"), ScriptedWorker("decode-1")]
    async with running_router(*workers) as router:
        for place in (1, 0, 1):
            await generate(router.grpc_address, text="a", hints={"decode_worker": f"decode-{place}"})
        assert [len(worker.commands) for worker in workers] == [1, 2]


async def test_cancelling_the_call_cancels_the_request() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker) as router, grpc.aio.insecure_channel(router.grpc_address) as channel:
        call = InferenceStub(channel).Generate(GenerateRequest(text="a", sampling=SAMPLING))
        await until(lambda: bool(worker.commands))
        call.cancel()
        await until(lambda: bool(worker.aborted))
        assert worker.aborted == [worker.commands[0].request_id]


async def test_health() -> None:
    async with running_router() as router, grpc.aio.insecure_channel(router.grpc_address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "baton.v1.Inference"):
            answer = await asyncio.wait_for(stub.Check(health_pb2.HealthCheckRequest(service=service)), 10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_messages_that_take_long_to_parse_are_refused() -> None:
    async with running_router(ScriptedWorker()) as router, grpc.aio.insecure_channel(router.grpc_address) as channel:
        name = "x" * 100_000
        calls = [
            InferenceStub(channel).Generate(GenerateRequest(text="a", stop=["x"] * 2000)),
            health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=name)),
        ]
        for call, text in zip(
            calls, ("has over 1024 fields", "has 100004 bytes, over the limit of 65536"), strict=True
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(aiter(call))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert text in (caught.value.details() or "")


async def test_messages_count_as_bodies_until_their_calls_end() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    options = {"max_body_bytes": 100_000, "max_client_body_bytes_in_flight": 100_000}
    async with (
        running_router(worker, **options) as router,
        grpc.aio.insecure_channel(router.grpc_address) as channel,
    ):
        request = GenerateRequest(text="hello", sampling=SAMPLING, cache_salt="x" * 1000)
        call = InferenceStub(channel).Generate(request)
        assert (await call.read()).token_ids
        assert await held_bytes(router) == request.ByteSize()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(router.grpc_address, text="a" * 99_500)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "the client's address is over the limit of 100000 bytes" in (caught.value.details() or "")
        worker.go_on.set()
        while await call.read() is not grpc.aio.EOF:
            pass
        await until_held(router, 0)


async def test_the_calls_of_a_connection_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MAX_CALLS", 2)
    async with (
        running_router(ScriptedWorker()) as router,
        grpc.aio.insecure_channel(router.grpc_address) as channel,
        grpc.aio.insecure_channel(router.grpc_address, options=[("grpc.use_local_subchannel_pool", 1)]) as other,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        watches = [health.Watch(health_pb2.HealthCheckRequest(service=str(number))) for number in range(2)]
        for watch in watches:
            await watch.read()
        check = asyncio.ensure_future(_status(health))
        assert await _status(health_pb2_grpc.HealthStub(other)) == health_pb2.HealthCheckResponse.SERVING
        assert not check.done()
        watches[0].cancel()
        assert await check == health_pb2.HealthCheckResponse.SERVING


async def _status(health: health_pb2_grpc.HealthStub) -> int:
    return (await health.Check(health_pb2.HealthCheckRequest())).status
