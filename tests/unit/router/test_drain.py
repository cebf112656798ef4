"""The drain of a router."""

import asyncio
import threading
from pathlib import Path

import grpc
import httpx
import orjson
import pytest

from baton.protos.router_pb2 import GenerateRequest
from baton.protos.router_pb2_grpc import InferenceStub
from baton.router.app import _cancel
from baton.router.batches.folder import OwnedBatch
from baton.router.files.disk import settled
from tests.unit.router.batches.batch_client import chat_line, start
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

BODY = {"prompt": "The cat sat on the mat", "max_tokens": 12}


async def is_refused(url: str) -> bool:
    """Return whether no process listens at the address."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as client:
        try:
            await client.get("/ready")
        except httpx.ConnectError:
            return True
    return False


async def test_connected_clients_are_served_and_new_connections_go_elsewhere() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    limits = httpx.Limits(max_connections=1)
    async with (
        running_router(worker) as router,
        httpx.AsyncClient(base_url=router.url, timeout=20, limits=limits, trust_env=False, verify=False) as client,
    ):
        assert (await client.get("/health")).status_code == 200
        request = asyncio.create_task(router.http.post("/v1/completions", json=BODY))
        await until(lambda: bool(worker.commands))
        router.stopping.set()
        late = asyncio.create_task(client.post("/v1/completions", json=BODY))  # over the connection that it has
        await until(lambda: len(worker.commands) == 2)
        async with asyncio.timeout(10):
            while not await is_refused(router.url):
                await asyncio.sleep(0.005)
        worker.go_on.set()
        for answer in (await request, await late):
            assert answer.json()["usage"]["completion_tokens"] == 12
        assert (await late).headers["connection"] == "close"


async def test_a_draining_router_holds_no_request_for_the_first_worker() -> None:
    limits = httpx.Limits(max_connections=1)
    async with (
        running_router(cold_start_timeout_s=60.0) as router,
        httpx.AsyncClient(base_url=router.url, timeout=20, limits=limits, trust_env=False, verify=False) as client,
    ):
        assert (await client.get("/health")).status_code == 200
        waiting = asyncio.create_task(router.http.post("/v1/completions", json=BODY))
        async with asyncio.timeout(20):
            while (await router.http.get("/pools")).json()["traffic"]["num_waiting"] != 1:
                await asyncio.sleep(0.005)
        router.stopping.set()
        late = await client.post("/v1/completions", json=BODY)  # over the connection that it has
        for answer in (await waiting, late):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["error"]["message"] == "no decode worker is ready"


async def events(router: RunningRouter) -> list[bytes]:
    """Return the data of a streamed completion."""
    async with router.http.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as answer:
        return [line.removeprefix("data: ").encode() async for line in answer.aiter_lines() if line]


@pytest.mark.parametrize("num_prompts", [1, 2])
async def test_clients_get_an_error_at_the_drain_timeout(num_prompts: int) -> None:
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
        assert (error["code"], error["type"]) == ("router_draining", "service_unavailable_error")
        assert "its drain timeout has expired" in error["message"]
        answer = await whole
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, error["message"])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [response async for response in call]
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, error["message"])


async def test_a_hung_disk_of_a_batch_keeps_no_listener_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_hung, goes_on, save = threading.Event(), threading.Event(), OwnedBatch.save

    def hang(owned: OwnedBatch, *, durable: bool = True) -> None:
        is_hung.set()
        goes_on.wait()
        save(owned, durable=durable)

    monkeypatch.setattr(OwnedBatch, "save", hang)
    async with running_router(ScriptedWorker(), files_dir=str(tmp_path)) as router:
        try:
            await start(router.openai, [chat_line("a")])
            await until(is_hung.is_set)
            router.stopping.set()
            async with asyncio.timeout(5):
                while not await is_refused(router.url):
                    await asyncio.sleep(0.005)
        finally:
            goes_on.set()


async def test_the_wait_for_a_task_that_does_not_end_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    goes_on = asyncio.Event()

    async def write() -> None:
        await settled(asyncio.create_task(goes_on.wait()))

    batches = asyncio.create_task(write(), name="batches")
    await asyncio.sleep(0)
    await _cancel(batches, 0.01)
    assert "the batches have not ended within 0.01 s" in caplog.text
    goes_on.set()
    await _cancel(batches)
    assert batches.cancelled()
    assert batches.cancelling() == 1  # a second cancellation would break off its last writes


async def test_a_request_that_waits_for_a_worker_fails_at_the_end() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, drain_timeout_s=0.05) as router:
        request = asyncio.create_task(router.http.post("/v1/completions", json=BODY))
        await until(lambda: bool(worker.commands))
        await worker.stop()
        router.stopping.set()
        answer = await request
        assert answer.status_code == 503
        assert "its drain timeout has expired" in answer.json()["error"]["message"]
