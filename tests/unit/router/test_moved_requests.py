"""Requests that move between workers: once per reason, with a wait if that helps."""

import asyncio
from typing import Any

import httpx
import pytest

from baton.engine.errors import QueueFull
from baton.protos import common_pb2
from baton.protos.worker_pb2 import WORKER_ROLE_PREFILL, RequestDelta
from baton.router.workers import connection
from baton.rpc.status import code_number
from tests.unit.router.rigs.running_router import (
    RunningRouter,
    running_router,
    until,
    wait_cached,
    wait_workers,
    worker_states,
)
from tests.unit.router.rigs.scripted_worker import BLOCK_SIZE, ScriptedWorker

BODY: dict[str, Any] = {"prompt": "The cat sat on the mat", "max_tokens": 12, "seed": 9, "return_token_ids": True}
GIVEN_AWAY = RequestDelta(finish_reason=common_pb2.FINISH_REASON_HANDED_OFF)
BUSY = RequestDelta(
    finish_reason=common_pb2.FINISH_REASON_ERROR,
    error=common_pb2.RequestError(code=code_number(QueueFull("")), message="the queue is full"),
)


def post(router: RunningRouter, n: int = 1, **headers: str) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(router.http.post("/v1/completions", json={**BODY, "n": n}, headers=headers))


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


async def drain_after_first_token(router: RunningRouter, worker: ScriptedWorker) -> None:
    """Let the worker of a request drain before it sends the second token, and let the request go on."""
    await until(lambda: len(worker.commands) == 1)
    worker.draining = True
    worker.news()
    await wait_workers(router.http, 1, "draining")
    worker.go_on.set()


@pytest.mark.parametrize("headers", [{}, {"x-baton-decode": "decode-0"}])
async def test_further_completions_of_a_request_wait_while_the_only_worker_drains(headers: dict[str, str]) -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, failover_timeout_s=30.0) as router:
        request = post(router, n=3, **headers)
        await drain_after_first_token(router, worker)
        async with asyncio.timeout(20):
            while "generation_tokens_total{" + 'model_name="bundled_model"} 12.0' not in await metrics(router):
                await asyncio.sleep(0.005)
        worker.draining = False
        worker.news()
        choices = (await request).json()["choices"]
        assert [len(choice["token_ids"]) for choice in choices] == [12] * 3
        assert len(worker.commands) == 3


@pytest.mark.parametrize("headers", [{}, {"x-baton-decode": "decode-0"}])
async def test_the_wait_of_further_completions_for_a_worker_is_bounded(headers: dict[str, str]) -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, failover_timeout_s=0.1) as router:
        request = post(router, n=2, **headers)
        await drain_after_first_token(router, worker)
        assert (await request).status_code == 503


@pytest.mark.parametrize(("timeout_s", "status"), [(0.1, 429), (30.0, 200)])
async def test_further_completions_of_a_request_wait_for_room(timeout_s: float, status: int) -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, failover_timeout_s=timeout_s) as router:
        request = post(router, n=2)
        await until(lambda: worker.num_pauses == 1)  # the first completion is accepted
        worker.refusal = BUSY
        worker.go_on.set()
        if status == 200:
            await until(lambda: len(worker.commands) >= 3)
            worker.refusal = None
        assert (await request).status_code == status


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


async def report(router: RunningRouter, worker: ScriptedWorker) -> None:
    """Send a report of the worker and wait until the router has it."""
    worker.load.num_waiting += 1
    worker.news()
    async with asyncio.timeout(20):
        while True:
            seen = (await worker_states(router.http))[worker.address].get("load", {})
            if int(seen.get("num_waiting", 0)) == worker.load.num_waiting:
                return
            await asyncio.sleep(0.005)


async def test_requests_leave_a_worker_that_is_short_of_ranks_once_another_can_continue_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "MOVE_AFTER_S", 0.0)
    short, other = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    short.go_on.clear()
    other.draining = True
    async with running_router(short, other) as router:
        request, pinned = post(router), post(router, **{"x-baton-decode": "decode-0"})
        await until(lambda: len(short.commands) == 2)
        short.short_of_ranks = True
        await report(router, short)
        await report(router, short)
        assert not short.aborted
        other.draining = False
        other.news()
        await wait_workers(router.http, 1, "ready")
        await report(router, short)
        moved = (await request).json()
        [command] = other.commands
        assert len(command.token_ids) > command.num_prompt_tokens  # it continues the output
        await until(lambda: len(short.aborted) == 1)
        assert not pinned.done()
        short.short_of_ranks = False
        await report(router, short)
        short.go_on.set()
        stayed = (await pinned).json()
        assert moved["choices"][0]["token_ids"] == stayed["choices"][0]["token_ids"]
        assert len(other.commands) == 1
        assert 'baton:failovers_total{model_name="bundled_model"} 1.0' in await metrics(router)


async def test_requests_stay_with_a_worker_that_is_short_of_ranks_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOVE_AFTER_S", 60.0)
    short, other = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    short.go_on.clear()
    other.draining = True
    async with running_router(short, other) as router:
        request = post(router)
        await until(lambda: len(short.commands) == 1)
        other.draining = False
        other.news()
        await wait_workers(router.http, 2, "ready")
        short.short_of_ranks = True
        await report(router, short)
        await report(router, short)
        short.short_of_ranks = False
        short.go_on.set()
        await report(router, short)
        assert (await request).json()["usage"]["completion_tokens"] == 12
        assert not other.commands
