"""Requests of a deployment that scales to zero, whose last worker leaves after they left the router's queue."""

import asyncio
from typing import Any

import httpx
import pytest

from baton.engine.errors import QueueFull
from baton.protos import common_pb2
from baton.protos.worker_pb2 import RequestDelta
from baton.router.pipeline import Pipeline
from baton.rpc.status import code_number
from tests.unit.router.console.event_reader import events
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until, wait_workers
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

BUSY = RequestDelta(
    finish_reason=common_pb2.FINISH_REASON_ERROR,
    error=common_pb2.RequestError(code=code_number(QueueFull("")), message="the queue is full"),
)
GIVEN_AWAY = RequestDelta(finish_reason=common_pb2.FINISH_REASON_HANDED_OFF)
BODY: dict[str, Any] = {"prompt": "The cat sat on the mat", "max_tokens": 12, "seed": 9}


def post(router: RunningRouter) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(router.http.post("/v1/completions", json=BODY))


async def wait_held(router: RunningRouter) -> None:
    """Wait until the autoscaler would see the request waiting."""
    async with asyncio.timeout(20):
        while (await router.http.get("/pools")).json()["traffic"]["num_waiting"] != 1:
            await asyncio.sleep(0.005)
    assert 'baton:router_waiting{model_name="bundled_model"} 1.0' in (await router.http.get("/metrics")).text


async def leave(router: RunningRouter, worker: ScriptedWorker) -> None:
    worker.draining = True
    worker.news()
    await wait_workers(router.http, 1, "draining")


def come_back(worker: ScriptedWorker) -> None:
    worker.draining = False
    worker.news()


async def test_a_request_whose_prompt_is_tokenised_meanwhile_waits_for_the_first_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_tokenised, goes_on, tokenize = asyncio.Event(), asyncio.Event(), Pipeline.tokenize

    async def pause(*arguments: Any) -> list[int]:
        is_tokenised.set()
        await goes_on.wait()
        return await tokenize(*arguments)

    monkeypatch.setattr(Pipeline, "tokenize", pause)
    worker = ScriptedWorker()
    async with running_router(worker, cold_start_timeout_s=60.0, failover_timeout_s=0.0) as router:
        request = post(router)
        await is_tokenised.wait()
        await leave(router, worker)
        goes_on.set()
        await wait_held(router)
        come_back(worker)
        assert (await request).json()["usage"]["completion_tokens"] == 12


async def test_a_request_that_the_last_worker_hands_off_waits_for_the_first_one() -> None:
    worker = ScriptedWorker()
    worker.refusal = GIVEN_AWAY
    async with running_router(worker, cold_start_timeout_s=60.0, failover_timeout_s=0.0) as router:
        request = post(router)
        await wait_held(router)
        async with events(router.http) as reader:
            [model] = (await reader.state())["models"]
            assert model["stages"][0]["num"] + model["waiting"] == 1  # the console counts it once
        worker.refusal = None
        await leave(router, worker)
        come_back(worker)
        assert (await request).json()["usage"]["completion_tokens"] == 12


async def test_a_request_may_still_wait_for_room_at_the_first_worker() -> None:
    worker = ScriptedWorker()
    worker.refusal = GIVEN_AWAY
    async with running_router(worker, cold_start_timeout_s=60.0, failover_timeout_s=0.5) as router:
        request = post(router)
        await wait_held(router)
        await leave(router, worker)
        await asyncio.sleep(0.6)  # longer than it may wait for room
        worker.refusal = BUSY
        come_back(worker)
        await until(lambda: len(worker.commands) > 1)
        worker.refusal = None
        assert (await request).json()["usage"]["completion_tokens"] == 12


async def test_a_draining_router_does_not_hold_a_request_that_the_last_worker_handed_off() -> None:
    worker = ScriptedWorker()
    worker.refusal = GIVEN_AWAY
    async with running_router(worker, cold_start_timeout_s=60.0, failover_timeout_s=0.0) as router:
        request = post(router)
        await wait_held(router)
        router.stopping.set()
        answer = await asyncio.wait_for(request, 10)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize("cold_start_timeout_s", [None, 0.05])
async def test_the_wait_for_the_first_worker_is_bounded(cold_start_timeout_s: float | None) -> None:
    worker = ScriptedWorker()
    worker.refusal = GIVEN_AWAY
    options = {} if cold_start_timeout_s is None else {"cold_start_timeout_s": cold_start_timeout_s}
    async with running_router(worker, failover_timeout_s=0.0, **options) as router:
        answer = await post(router)
        assert answer.status_code == 503
