"""A router that is told to end."""

import asyncio

import grpc
import orjson
import pytest

from protos.router_pb2 import GenerateRequest
from protos.router_pb2_grpc import InferenceStub
from tests.unit.router.running_router import RunningRouter, running_router, until
from tests.unit.router.scripted_worker import ScriptedWorker

BODY = {"prompt": "The cat sat on the mat", "max_tokens": 12}


async def test_running_requests_end_well_and_new_ones_are_refused() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker) as router:
        request = asyncio.create_task(router.http.post("/v1/completions", json=BODY))
        await until(lambda: bool(worker.commands))
        router.stopping.set()
        async with asyncio.timeout(10):
            while (await router.http.get("/ready")).status_code != 503:
                await asyncio.sleep(0.005)
        refused = await router.http.post("/v1/completions", json=BODY)
        assert refused.status_code == 503
        assert "shutting down" in refused.json()["error"]["message"]
        worker.go_on.set()
        assert (await request).json()["usage"]["completion_tokens"] == 12


async def events(router: RunningRouter) -> list[bytes]:
    """The data of a streamed completion, to the end of the connection."""
    async with router.http.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as answer:
        return [line.removeprefix("data: ").encode() async for line in answer.aiter_lines() if line]


@pytest.mark.parametrize("num_prompts", [1, 2])
async def test_clients_are_told_when_the_time_is_over(num_prompts: int) -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with (
        running_router(worker, drain_timeout_s=0.05) as router,
        grpc.aio.insecure_channel(router.grpc_address) as channel,
    ):
        streamed = asyncio.create_task(events(router))
        whole = asyncio.create_task(
            router.http.post("/v1/completions", json={**BODY, "prompt": ["a"] * num_prompts, "n": 2})
        )
        call = InferenceStub(channel).Generate(GenerateRequest(text="a"))
        await until(lambda: len(worker.commands) == 2 + num_prompts)
        router.stopping.set()
        error = orjson.loads((await streamed)[-1])["error"]
        assert (error["code"], error["type"]) == (503, "service_unavailable_error")
        assert "time for running requests is over" in error["message"]
        answer = await whole
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, error["message"])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [response async for response in call]
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, error["message"])


async def test_a_request_that_waits_for_a_worker_is_told_too() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, drain_timeout_s=0.05) as router:
        request = asyncio.create_task(router.http.post("/v1/completions", json=BODY))
        await until(lambda: bool(worker.commands))
        await worker.stop()
        router.stopping.set()
        answer = await request
        assert answer.status_code == 503
        assert "time for running requests is over" in answer.json()["error"]["message"]
