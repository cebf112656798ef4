"""Pinned requests, from the header to the worker."""

import asyncio
from typing import Any

import grpc

from baton.protos import common_pb2, worker_pb2
from tests.unit.router.running_router import RunningRouter, running_router, until
from tests.unit.router.scripted_worker import ScriptedWorker


async def post(router: RunningRouter, **headers: str) -> tuple[int, dict[str, Any]]:
    body = {"model": "bundled_model", "prompt": list(range(300, 330)), "max_tokens": 4, "temperature": 0}
    named = {f"x-baton-{name}": value for name, value in headers.items()}
    answer = await router.http.post("/v1/completions", json=body, headers=named)
    return answer.status_code, answer.json()


async def test_a_pinned_request_goes_to_its_worker() -> None:
    workers = [ScriptedWorker(f"decode-{number}") for number in range(3)]
    prefill = ScriptedWorker("prefill-0", worker_pb2.WORKER_ROLE_PREFILL)
    async with running_router(*workers, prefill) as router:
        for _ in range(6):
            assert (await post(router, decode="decode-2", plan="local"))[0] == 200
        assert [len(worker.commands) for worker in workers] == [0, 0, 6]
        assert not any(command.HasField("prefill") for command in workers[2].commands)
        assert (await post(router, decode="decode-1", prefill="prefill-0"))[0] == 200
        assert workers[1].commands[0].prefill.worker_id == "prefill-0"
        numbers = [command.number for worker in workers for command in worker.commands]
        assert sorted(numbers) == list(range(1, 8))


async def test_an_impossible_hint_is_a_client_error() -> None:
    async with running_router(ScriptedWorker("decode-0")) as router:
        status, body = await post(router, decode="decode-7")
        assert status == 400
        assert "decode-7" in body["error"]["message"]
        status, body = await post(router, plan="remote")
        assert status == 400
        assert "decode-0" in body["error"]["message"]


async def test_a_pinned_request_waits_for_its_worker_to_come_back() -> None:
    worker, other = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    worker.go_on.clear()
    async with running_router(worker, other) as router:
        request = asyncio.create_task(post(router, decode="decode-0"))
        await until(lambda: bool(worker.commands))
        await worker.stop()
        worker.go_on.set()
        await worker.start()
        assert (await request)[0] == 200
        assert not other.commands
        assert len(worker.commands) == 2


async def test_a_full_pinned_worker_is_reported_as_full() -> None:
    worker, other = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    worker.refusal = worker_pb2.RequestDelta(finish_reason=common_pb2.FINISH_REASON_ERROR)
    worker.refusal.error.code = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    worker.refusal.error.message = "the queue is full"
    async with running_router(worker, other, failover_timeout_s=60.0) as router:
        async with asyncio.timeout(30):
            status, body = await post(router, decode="decode-0")
        assert (status, body["error"]["message"]) == (429, "the queue is full")
        assert not other.commands


async def test_a_failure_of_a_pinned_worker_is_a_server_error() -> None:
    worker, other = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    worker.refusal = worker_pb2.RequestDelta(finish_reason=common_pb2.FINISH_REASON_ABORT)
    async with running_router(worker, other, failover_timeout_s=0.2) as router:
        status, body = await post(router, decode="decode-0")
        assert (status, body["error"]["message"]) == (503, "decode worker decode-0 aborted the request")
        assert not other.commands
