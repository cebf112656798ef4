"""KServe's protocol over gRPC: the same text as over HTTP, concurrent requests of a stream, errors as statuses."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from baton.protos import open_inference_pb2 as pb
from baton.protos.open_inference_pb2_grpc import GRPCInferenceServiceStub
from baton.router.kserve import grpc_service
from tests.unit.router.http.test_uploads import held_bytes, until_held
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

OPTIONS = {"seed": 9, "max_tokens": 6}
DATATYPES = {str: "BYTES", bool: "BOOL"}


def infer_request(request_id: str = "", raw: bool = True, **inputs: str | bool) -> pb.ModelInferRequest:
    """Return a request for the bundled model with these inputs, as raw or as typed contents."""
    request = pb.ModelInferRequest(model_name="bundled_model", id=request_id)
    for name, value in {"text_input": "hello world", "sampling_parameters": json.dumps(OPTIONS), **inputs}.items():
        tensor = request.inputs.add(name=name, datatype=DATATYPES[type(value)], shape=[1])
        content = value.encode() if isinstance(value, str) else bytes([value])
        if not raw and isinstance(value, bool):
            tensor.contents.bool_contents.append(value)
        elif not raw:
            tensor.contents.bytes_contents.append(content)
        else:
            length = len(content).to_bytes(4, "little") if isinstance(value, str) else b""
            request.raw_input_contents.append(length + content)
    return request


def tensors(response: pb.ModelInferResponse) -> dict[str, Any]:
    """Return the outputs' elements by name."""
    found: dict[str, Any] = {}
    for tensor, content in zip(response.outputs, response.raw_output_contents, strict=True):
        elements: list[Any] = []
        while content:
            number, content = int.from_bytes(content[:4], "little"), content[4:]
            if tensor.datatype == "BYTES":
                elements.append(content[:number].decode())
                content = content[number:]
            else:
                elements.append(number)
        assert list(tensor.shape) == [len(elements)]
        found[tensor.name] = elements
    return found


@asynccontextmanager
async def stub_of(router: RunningRouter) -> AsyncIterator[GRPCInferenceServiceStub]:
    async with grpc.aio.insecure_channel(router.grpc_address) as channel:
        yield GRPCInferenceServiceStub(channel)


async def completion_text(router: RunningRouter, **options: object) -> str:
    body = {"prompt": "hello world", **OPTIONS, **options}
    return str((await router.http.post("/v1/completions", json=body)).json()["choices"][0]["text"])


@pytest.mark.parametrize("raw", [True, False])
async def test_an_inference_has_the_text_of_the_completions_api(raw: bool) -> None:
    async with running_router(ScriptedWorker()) as router, stub_of(router) as stub:
        text = await completion_text(router)
        flags = {f"return_{name}": True for name in ("finish_reason", "num_input_tokens", "num_output_tokens")}
        response = await stub.ModelInfer(infer_request("mine", raw, **flags))
        assert (response.model_name, response.model_version, response.id) == ("bundled_model", "1", "mine")
        found = tensors(response)
        assert found.pop("num_input_tokens")[0] > 0
        assert found == {"text_output": ["hello world" + text], "finish_reason": ["length"], "num_output_tokens": [6]}
        excluded = await stub.ModelInfer(infer_request(raw=raw, exclude_input_in_output=True))
        assert tensors(excluded) == {"text_output": [text]}


async def test_parameters_are_options_too() -> None:
    async with running_router(ScriptedWorker()) as router, stub_of(router) as stub:
        text = await completion_text(router, temperature=0.5, ignore_eos=True)
        request = infer_request(sampling_parameters="{}", exclude_input_in_output=True)
        for name, value in (("seed", {"int64_param": 9}), ("max_tokens", {"uint64_param": 6})):
            request.parameters[name].CopyFrom(pb.InferParameter(**value))
        request.parameters["temperature"].double_param = 0.5
        request.parameters["ignore_eos"].string_param = "true"
        assert tensors(await stub.ModelInfer(request)) == {"text_output": [text]}


async def read_stream(
    stub: GRPCInferenceServiceStub, *requests: pb.ModelInferRequest
) -> dict[str, list[pb.ModelStreamInferResponse]]:
    """Send all requests in one stream. Return the responses by the id of their request."""
    call = stub.ModelStreamInfer()
    for request in requests:
        await call.write(request)
    await call.done_writing()
    found: dict[str, list[pb.ModelStreamInferResponse]] = {}
    async for response in call:
        found.setdefault(response.infer_response.id, []).append(response)
    return found


def is_final(response: pb.ModelStreamInferResponse) -> bool:
    return response.infer_response.parameters["triton_final_response"].bool_param


async def test_a_stream_serves_several_requests() -> None:
    async with running_router(ScriptedWorker()) as router, stub_of(router) as stub:
        text = await completion_text(router)
        empty_end = infer_request("empty end", stream=True, return_num_output_tokens=True)
        empty_end.parameters["triton_enable_empty_final_response"].bool_param = True
        wrong = infer_request("wrong", text_input="")
        found = await read_stream(
            stub, infer_request("streamed", stream=True), wrong, infer_request("whole"), empty_end
        )
        streamed = found.pop("streamed")
        assert len(streamed) > 2
        assert "".join(tensors(each.infer_response)["text_output"][0] for each in streamed) == text
        assert [is_final(each) for each in streamed] == [False] * (len(streamed) - 1) + [True]
        [whole] = found.pop("whole")
        assert tensors(whole.infer_response) == {"text_output": ["hello world" + text]}
        assert is_final(whole)
        [error] = found.pop("wrong")
        assert error.error_message.startswith("text_input: the prompt is empty")
        assert is_final(error)
        *deltas, end = found.pop("empty end")
        assert sum(tensors(each.infer_response)["num_output_tokens"][0] for each in deltas) == 6
        assert not any(map(is_final, deltas))
        assert is_final(end)
        assert not end.infer_response.outputs
        assert not found


async def test_requests_of_a_stream_run_at_once_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_service, "MAX_STREAM_REQUESTS", 2)
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker) as router, stub_of(router) as stub:
        reading = asyncio.create_task(
            read_stream(stub, *(infer_request(str(place), stream=True) for place in range(5)))
        )
        await until(lambda: len(worker.commands) == 2)
        assert (await router.http.get("/workers")).json()["router"]["inflight"] == 2
        assert len(worker.commands) == 2
        worker.go_on.set()
        assert sorted(await reading) == ["0", "1", "2", "3", "4"]


async def test_several_completions_of_a_stream_are_the_elements_of_the_text() -> None:
    async with running_router(ScriptedWorker()) as router, stub_of(router) as stub:
        options = {**OPTIONS, "n": 2}
        choices = (await router.http.post("/v1/completions", json={"prompt": "hello world", **options})).json()[
            "choices"
        ]
        request = infer_request("mine", stream=True, sampling_parameters=json.dumps(options))
        responses = (await read_stream(stub, request))["mine"]
        texts = [tensors(each.infer_response)["text_output"] for each in responses]
        assert ["".join(parts) for parts in zip(*texts, strict=True)] == [choice["text"] for choice in choices]
        assert [is_final(each) for each in responses] == [False] * (len(responses) - 1) + [True]


async def test_cancelling_a_call_cancels_its_requests() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker) as router, stub_of(router) as stub:
        call = stub.ModelStreamInfer()
        for name in ("a", "b"):
            await call.write(infer_request(name, stream=True))
        unary = stub.ModelInfer(infer_request())
        await until(lambda: len(worker.commands) == 3)
        call.cancel()
        await until(lambda: len(worker.aborted) == 2)
        unary.cancel()
        await until(lambda: len(worker.aborted) == 3)
        await until_held(router, 0)


async def test_an_error_in_mid_stream_follows_the_output() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, failover_attempts=0) as router, stub_of(router) as stub:
        call = stub.ModelStreamInfer()
        await call.write(infer_request("mine", stream=True))
        first = await call.read()
        assert tensors(first.infer_response)["text_output"]
        assert await held_bytes(router) > 0
        await worker.stop()
        last = await call.read()
        assert last.error_message
        assert (last.infer_response.id, is_final(last)) == ("mine", True)
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK


def changed(**fields: Any) -> pb.ModelInferRequest:
    request = infer_request()
    request.MergeFrom(pb.ModelInferRequest(**fields))
    return request


def with_first(**fields: Any) -> pb.ModelInferRequest:
    request = infer_request()
    request.inputs[0].MergeFrom(pb.ModelInferRequest.InferInputTensor(**fields))
    return request


INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (changed(model_name="other"), grpc.StatusCode.NOT_FOUND, "The model `other` does not exist"),
        (changed(model_version="2"), grpc.StatusCode.NOT_FOUND, "has no version `2`"),
        (pb.ModelInferRequest(), INVALID, "text_input is required"),
        (infer_request(stream=True), INVALID, "stream must be false: this call returns one response"),
        (infer_request(sampling_parameters='{"top_p": 2}'), INVALID, "top_p: Input should be less than or equal to 1"),
        (infer_request(sampling_parameters='{"n": 1000}'), INVALID, "n is 1000"),
        (infer_request(sampling_parameters="x" * 70_000), INVALID, "sampling_parameters has 70000 characters"),
        (changed(raw_input_contents=[b""]), INVALID, "raw_input_contents has 3 tensors, but inputs has 2"),
        (with_first(shape=[1]), INVALID, "text_input: shape is [1, 1], but must be [1]"),
        (with_first(datatype="INT8"), INVALID, "text_input: datatype is 'INT8', but must be BYTES"),
        (with_first(contents={"bytes_contents": [b"a"]}), INVALID, "text_input: contents and raw_input_contents must"),
        (
            with_first(parameters={"shared_memory_region": {"string_param": "a"}}), INVALID,
            "text_input: the parameter 'shared_memory_region' is not supported",
        ),
        (changed(outputs=[{"name": "logits"}]), INVALID, "outputs has an unknown tensor 'logits'"),
        (changed(parameters={"sequence_id": {"int64_param": 1}}), INVALID, "sequence_id: Unrecognized"),
        (changed(parameters={"seed": {}}), INVALID, "seed: the parameter has no value"),
        (changed(id="x" * 1025), INVALID, "id has 1025 characters"),
        (changed(inputs=[{"name": f"{place}"} for place in range(1024)]), INVALID, "the request has over 1024 fields"),
    ],
)  # fmt: skip
async def test_errors_are_statuses(request_: pb.ModelInferRequest, code: grpc.StatusCode, message: str) -> None:
    async with running_router(ScriptedWorker()) as router, stub_of(router) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ModelInfer(request_)
        assert caught.value.code() is code
        assert (caught.value.details() or "").startswith(message) or code is grpc.StatusCode.NOT_FOUND
        assert message in (caught.value.details() or "")


async def test_the_time_limit_and_the_routing_hints() -> None:
    workers = [ScriptedWorker("decode-0"), ScriptedWorker("decode-1")]
    async with running_router(*workers) as router, stub_of(router) as stub:
        for place in (1, 0, 1):
            await stub.ModelInfer(infer_request(), metadata=(("x-baton-decode", f"decode-{place}"),))
        assert [len(worker.commands) for worker in workers] == [1, 2]
        for worker in workers:
            worker.go_on.clear()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ModelInfer(changed(parameters={"timeout": {"int64_param": 50_000}}))
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_metadata() -> None:
    async with running_router(ScriptedWorker()) as router, stub_of(router) as stub:
        assert (await stub.ServerLive(pb.ServerLiveRequest())).live
        assert (await stub.ServerReady(pb.ServerReadyRequest())).ready
        assert (await stub.ModelReady(pb.ModelReadyRequest(name="bundled_model"))).ready
        server = await stub.ServerMetadata(pb.ServerMetadataRequest())
        assert {"name": server.name, "version": server.version, "extensions": list(server.extensions)} == (
            await router.http.get("/v2")
        ).json()
        model = await stub.ModelMetadata(pb.ModelMetadataRequest(name="bundled_model", version="1"))
        assert [each.name for each in model.outputs][:2] == ["text_output", "finish_reason"]
        config = (await stub.ModelConfig(pb.ModelConfigRequest(name="bundled_model"))).config
        assert config.model_transaction_policy.decoupled
        index = await stub.RepositoryIndex(pb.RepositoryIndexRequest())
        assert [(each.name, each.state) for each in index.models] == [("bundled_model", "READY")]
        for method, request in (
            (stub.ModelReady, pb.ModelReadyRequest(name="other")),
            (stub.ModelMetadata, pb.ModelMetadataRequest(name="bundled_model", version="2")),
            (stub.ModelConfig, pb.ModelConfigRequest(name="other")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(request)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_malformed_message_ends_the_stream() -> None:
    async with running_router(ScriptedWorker()) as router, grpc.aio.insecure_channel(router.grpc_address) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        await call.write(b"\xff")
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
