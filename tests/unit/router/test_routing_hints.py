"""Pinned requests, from the header to the worker."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from baton.protos import common_pb2, worker_pb2
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

REMOTE = {"plan": "remote"}
MISSING = "the plan is remote, but no prefill worker can prefill for decode-0 now"


async def is_status(router: RunningRouter, status: int) -> bool:
    """Return whether a request with a remote plan has this status."""
    return (await post(router, plan="remote"))[0] == status


async def until_async(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.02)


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


async def test_a_remote_plan_without_a_ready_prefill_worker_is_retried_later() -> None:
    decode, prefill = ScriptedWorker("decode-0"), ScriptedWorker("prefill-0", worker_pb2.WORKER_ROLE_PREFILL)
    async with running_router(decode, prefill) as router:
        assert (await post(router, plan="remote"))[0] == 200

        prefill.draining = True
        prefill.news()
        await until_async(lambda: is_status(router, 503))
        await prefill.stop()
        for hints in (REMOTE, {**REMOTE, "decode": "decode-0"}):
            status, body = await post(router, **hints)
            assert (status, body["error"]["message"]) == (503, MISSING)
        headers = {"x-baton-plan": "remote"}
        answer = await router.http.post("/v1/completions", json={"prompt": [300], "max_tokens": 1}, headers=headers)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert (await post(router, plan="remote", prefill="prefill-0"))[0] == 400
        assert (await post(router, plan="remote", decode="decode-9"))[0] == 400
        assert (await post(router))[0] == 200
        prefill.draining = False
        await prefill.start()
        await until_async(lambda: is_status(router, 200))


async def test_a_remote_plan_that_never_becomes_possible_is_a_client_error() -> None:
    decode, prefill = ScriptedWorker("decode-0"), ScriptedWorker("prefill-0", worker_pb2.WORKER_ROLE_PREFILL)
    small = ScriptedWorker("prefill-1", worker_pb2.WORKER_ROLE_PREFILL)
    prefill.fingerprint, small.max_model_len = "other", 8
    async with running_router(decode, prefill, small, ScriptedWorker("decode-1")) as router:
        for worker in (prefill, small):
            await worker.stop()
        await until_async(lambda: is_status(router, 400))
        _, body = await post(router, plan="remote")
        assert body["error"]["message"].startswith("the plan is remote, but no prefill worker can prefill for decode-")


async def test_a_configured_worker_that_was_never_reached_may_become_the_prefill_worker() -> None:
    prefill = ScriptedWorker("prefill-0", worker_pb2.WORKER_ROLE_PREFILL)
    address = await prefill.start()
    await prefill.stop()
    decode = ScriptedWorker("decode-0")
    async with running_router(workers=(await decode.start(), address)) as router:
        await until_async(lambda: is_status(router, 503))
        assert (await post(router, plan="remote"))[1]["error"]["message"] == MISSING
        await prefill.start()
        await until_async(lambda: is_status(router, 200))
    await prefill.stop()
    await decode.stop()


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
