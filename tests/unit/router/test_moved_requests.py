"""Requests that move between workers: once per reason, with a wait if that helps."""

import asyncio
from typing import Any

import httpx
import pytest

from baton.engine.errors import QueueFull
from baton.protos import common_pb2
from baton.protos.worker_pb2 import WORKER_ROLE_PREFILL, RequestDelta
from baton.rpc.status import code_number
from tests.unit.router.running_router import RunningRouter, running_router, until, wait_cached, wait_workers
from tests.unit.router.scripted_worker import BLOCK_SIZE, ScriptedWorker

BODY: dict[str, Any] = {"prompt": "The cat sat on the mat", "max_tokens": 12, "seed": 9, "return_token_ids": True}
GIVEN_AWAY = RequestDelta(finish_reason=common_pb2.FINISH_REASON_HANDED_OFF)
BUSY = RequestDelta(
    finish_reason=common_pb2.FINISH_REASON_ERROR,
    error=common_pb2.RequestError(code=code_number(QueueFull("")), message="the queue is full"),
)


def post(router: RunningRouter, **headers: str) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(router.http.post("/v1/completions", json=BODY, headers=headers))


async def metrics(router: RunningRouter) -> str:
    return (await router.http.get("/metrics")).text


async def leave(router: RunningRouter, worker: ScriptedWorker, is_drain: bool) -> None:
    """Let the worker drain and hand off its requests, or stop it."""
    if not is_drain:
        await worker.stop()
        return
    worker.draining = worker.gives_away = True
    worker.news()
    await wait_workers(router.http, 1, "draining")
    worker.go_on.set()


@pytest.mark.parametrize("timeout_s", [0.0, 0.1])
async def test_a_pinned_request_that_is_handed_off_fails_once(timeout_s: float) -> None:
    leaving, other = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    leaving.refusal = GIVEN_AWAY
    async with running_router(leaving, other, failover_timeout_s=timeout_s) as router:
        answer = await post(router, **{"x-baton-decode": "decode-0"})
        assert answer.status_code == 503
        assert "is draining and handed the request off" in answer.json()["error"]["message"]
        text = (await router.http.get("/metrics")).text
        assert 'baton:requests_handed_off_total{model_name="bundled_model"} 1.0' in text
        assert not other.commands


async def test_a_request_handed_off_by_the_only_worker_continues_once_it_is_undrained() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, failover_timeout_s=30.0) as router:
        request = post(router)
        await until(lambda: bool(worker.commands))
        await leave(router, worker, is_drain=True)
        async with asyncio.timeout(20):
            while "requests_handed_off_total{" + 'model_name="bundled_model"} 1.0' not in await metrics(router):
                await asyncio.sleep(0.005)
        worker.draining = worker.gives_away = False
        worker.news()
        answer = (await request).json()
        assert answer["usage"]["completion_tokens"] == 12
        assert len(worker.commands) == 2


async def test_a_request_may_return_to_a_worker_that_handed_it_off() -> None:
    first, second = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    first.go_on.clear()
    second.go_on.clear()
    async with running_router(first, second, policy="round_robin", failover_timeout_s=10.0) as router:
        request = post(router)
        await until(lambda: bool(first.commands or second.commands))
        early, late = (first, second) if first.commands else (second, first)
        early.gives_away = True
        early.go_on.set()  # the request is back before the report of the drain
        await until(lambda: bool(late.commands))
        early.draining = True
        early.news()
        await wait_workers(router.http, 1, "draining")
        early.draining = early.gives_away = False
        early.news()
        await wait_workers(router.http, 2, "ready")
        await leave(router, late, is_drain=True)
        assert (await request).json()["usage"]["completion_tokens"] == 12
        assert (len(early.commands), len(late.commands)) == (2, 1)


async def test_a_pinned_request_of_a_dead_worker_fails() -> None:
    first, other = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    first.go_on.clear()
    async with running_router(first, other, failover_timeout_s=0.1) as router:
        request = post(router, **{"x-baton-decode": "decode-0"})
        await until(lambda: bool(first.commands))
        await first.stop()
        assert (await request).status_code == 503
        assert 'baton:failovers_total{model_name="bundled_model"} 1.0' in (await router.http.get("/metrics")).text


@pytest.mark.parametrize("is_drain", [True, False])
async def test_a_worker_that_was_busy_once_may_have_room_later(is_drain: bool) -> None:
    busy, leaving = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    busy.refusal = BUSY
    leaving.go_on.clear()
    async with running_router(busy, leaving, policy="round_robin", failover_timeout_s=5.0) as router:
        request = post(router)
        await until(lambda: bool(leaving.commands))
        busy.refusal = None
        await leave(router, leaving, is_drain)
        assert (await request).json()["usage"]["completion_tokens"] == 12
        assert len(busy.commands) == 2


@pytest.mark.parametrize("is_drain", [True, False])
async def test_a_request_that_lost_its_worker_waits_for_room_at_another(is_drain: bool) -> None:
    leaving, staying = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    leaving.go_on.clear()
    staying.refusal = BUSY
    async with running_router(leaving, staying, policy="round_robin", failover_timeout_s=10.0) as router:
        request = post(router)
        await until(lambda: bool(leaving.commands))
        await leave(router, leaving, is_drain)
        await until(lambda: len(staying.commands) >= 2)
        staying.refusal = None
        assert (await request).json()["usage"]["completion_tokens"] == 12


async def test_the_wait_for_a_worker_is_bounded() -> None:
    leaving, staying = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    leaving.refusal, staying.refusal = GIVEN_AWAY, BUSY
    async with running_router(leaving, staying, policy="round_robin", failover_timeout_s=0.3) as router:
        answer = await post(router)
        assert answer.status_code == 429


@pytest.mark.parametrize("num_blocks", [1, 49])
async def test_a_long_prompt_that_was_hardly_begun_is_not_computed_at_the_decode_worker(num_blocks: int) -> None:
    leaving, staying = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    prefill = ScriptedWorker("prefill-0", WORKER_ROLE_PREFILL)
    leaving.refusal = GIVEN_AWAY
    prompt = list(range(300, 500))
    async with running_router(leaving, staying, prefill, policy="round_robin", local_prefill_below=64) as router:
        leaving.cache(prompt[: num_blocks * BLOCK_SIZE])
        await wait_cached(router.http, leaving, num_blocks)
        answer = await router.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4})
        assert answer.status_code == 200
        [command] = staying.commands
        assert command.prefix_source.worker_id == "decode-0"
        assert command.prefill.worker_id == ("prefill-0" if num_blocks == 1 else "")
