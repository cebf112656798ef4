"""API keys of KServe's calls over gRPC: which calls need one, its limits, and streams that outlive their key."""

import asyncio
from pathlib import Path

import grpc
import pytest

from baton.protos import open_inference_pb2 as pb
from tests.unit.router.api_keys import TestKeys, bearer
from tests.unit.router.kserve.test_kserve_grpc import infer_request, is_final, read_stream, stub_of, tensors
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker


async def test_only_health_needs_no_key(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    key = keys.add("mine")
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router, stub_of(router) as stub:
        assert (await stub.ServerLive(pb.ServerLiveRequest())).live
        assert (await stub.ServerReady(pb.ServerReadyRequest())).ready
        calls = [
            stub.ServerMetadata(pb.ServerMetadataRequest()),
            stub.ModelReady(pb.ModelReadyRequest(name="bundled_model")),
            stub.ModelInfer(infer_request()),
        ]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_stream(stub, infer_request())
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        metadata = tuple(bearer(key).items())
        assert tensors(await stub.ModelInfer(infer_request(), metadata=metadata))["text_output"]


async def test_the_limit_of_a_key_is_an_error_of_the_request(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    key = keys.add("mine", requests_per_minute=1)
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router, stub_of(router) as stub:
        call = stub.ModelStreamInfer(metadata=tuple(bearer(key).items()))
        for name in ("a", "b"):
            await call.write(infer_request(name))
        await call.done_writing()
        errors = {each.infer_response.id: each.error_message async for each in call}
        assert sorted(map(bool, errors.values())) == [False, True]
        assert "try again in" in "".join(errors.values())


async def until_status(router: RunningRouter, key: str, status: int) -> None:
    """Return once the list of models has this status for a key."""
    async with asyncio.timeout(20):
        while (await router.http.get("/v1/models", headers=bearer(key))).status_code != status:
            await asyncio.sleep(0.05)


async def test_a_stream_outlives_its_key_but_serves_no_more_requests(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    key = keys.add("mine")
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, api_keys_file=str(keys.path)) as router, stub_of(router) as stub:
        call = stub.ModelStreamInfer(metadata=tuple(bearer(key).items()))
        await call.write(infer_request("before"))
        await until(lambda: len(worker.commands) == 1)
        entry = keys.entries[0]
        keys.remove("mine")
        await until_status(router, key, 401)
        await call.write(infer_request("after"))
        refused = await asyncio.wait_for(call.read(), 20)
        assert (refused.infer_response.id, is_final(refused)) == ("after", True)
        assert refused.error_message == "the API key is unknown or no longer valid"
        worker.go_on.set()
        served = await call.read()
        assert tensors(served.infer_response)["text_output"]
        assert (served.infer_response.id, len(worker.commands)) == ("before", 1)
        keys.entries.append({**entry, "requests_per_minute": 1})
        keys.write()
        await until_status(router, key, 200)
        for name in ("a", "b"):
            await call.write(infer_request(name))
        errors = [(await call.read()).error_message for _ in range(2)]
        assert sorted(map(bool, errors)) == [False, True]
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
