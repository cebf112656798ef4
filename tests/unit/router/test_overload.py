"""An overloaded router, over HTTP and gRPC."""

import asyncio
import time
from typing import Any

import grpc
import httpx
import orjson
import pytest

from baton.protos.common_pb2 import SamplingParams
from baton.protos.router_pb2 import GenerateRequest
from baton.protos.router_pb2_grpc import InferenceStub
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until, wait_workers
from tests.unit.router.rigs.scripted_worker import ScriptedWorker
from tests.unit.router.test_drain import is_refused

BODY: dict[str, Any] = {"prompt": "The cat sat on the mat", "max_tokens": 4}


class SmallWorker(ScriptedWorker):
    """A worker that reports the number of sequences that it runs."""

    max_num_seqs = 2

    async def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802
        description = await super().Describe(request, context)
        description.max_num_seqs = self.max_num_seqs
        return description


def held() -> ScriptedWorker:
    """A worker that pauses after each first token."""
    worker = ScriptedWorker()
    worker.go_on.clear()
    return worker


def post(
    router: RunningRouter, headers: dict[str, str] | None = None, **options: Any
) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(router.http.post("/v1/completions", json={**BODY, **options}, headers=headers))


async def wait_metric(router: RunningRouter, name: str, value: float) -> None:
    """Wait until the router's series has the value."""
    async with asyncio.timeout(20):
        while await metric(router, name) != value:
            await asyncio.sleep(0.005)


async def metric(router: RunningRouter, name: str) -> float:
    """Return the sum of a series over its labels."""
    text = (await router.http.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith((f"baton:{name}{{", f"baton:{name} "))]
    assert lines, name
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def test_requests_beyond_the_workers_capacity_wait_in_the_router() -> None:
    worker = SmallWorker()
    worker.go_on.clear()
    async with running_router(worker) as router:
        await wait_metric(router, "router_capacity", 10)
        requests = [post(router) for _ in range(14)]
        await wait_metric(router, "router_waiting", 4)
        assert len(worker.commands) == 10
        worker.go_on.set()
        assert [answer.status_code for answer in await asyncio.gather(*requests)] == [200] * 14
        assert await metric(router, "request_queue_time_seconds_count") == 4
        assert await metric(router, "router_waiting") == await metric(router, "router_inflight") == 0


async def test_a_draining_worker_counts_with_its_remaining_requests() -> None:
    workers = SmallWorker("decode-0"), SmallWorker("decode-1")
    for worker in workers:
        worker.max_num_seqs = 40
        worker.go_on.clear()
    async with running_router(*workers) as router:
        await wait_metric(router, "router_capacity", 100)
        request = post(router)
        await until(lambda: any(worker.commands for worker in workers))
        [leaving] = [worker for worker in workers if worker.commands]
        leaving.draining = True
        leaving.news()
        await wait_workers(router.http, 1, "draining")
        await wait_metric(router, "router_capacity", 41 + 10)
        leaving.go_on.set()
        assert (await request).status_code == 200
        await wait_metric(router, "router_capacity", 40 + 10)


async def test_a_worker_without_a_reported_capacity_sets_no_limit() -> None:
    async with running_router(SmallWorker("decode-0"), ScriptedWorker("decode-1"), max_inflight=77) as router:
        assert await metric(router, "router_capacity") == 77


async def test_priority_decides_who_waits_longer() -> None:
    worker = held()
    async with running_router(worker, max_inflight=1) as router:
        requests = [post(router, cache_salt="first")]
        await until(lambda: len(worker.commands) == 1)
        for place, priority in enumerate((5, 0, -5)):
            requests.append(post(router, cache_salt=str(priority), priority=priority))
            await wait_metric(router, "router_waiting", place + 1)
        worker.go_on.set()
        await asyncio.gather(*requests)
        assert [command.cache_salt for command in worker.commands] == ["first", "-5", "0", "5"]


async def test_clients_take_turns() -> None:
    worker = held()
    async with running_router(worker, max_inflight=1) as router:
        requests = [post(router, cache_salt="first")]
        await until(lambda: len(worker.commands) == 1)
        for place, client in enumerate(("a", "a", "a", "b")):
            requests.append(post(router, {"authorization": f"Bearer {client}"}, cache_salt=f"{client}{place}"))
            await wait_metric(router, "router_waiting", place + 1)
        worker.go_on.set()
        await asyncio.gather(*requests)
        assert [command.cache_salt for command in worker.commands] == ["first", "a0", "b3", "a1", "a2"]


async def test_a_request_states_its_own_time() -> None:
    worker = held()
    async with running_router(worker, default_timeout_s=0.2) as router:
        patient = post(router, {"x-baton-timeout": "1e300"})
        hurried = await router.http.post("/v1/completions", json=BODY, headers={"x-baton-timeout": "0.01"})
        assert hurried.status_code == 504
        assert (await post(router)).status_code == 504
        worker.go_on.set()
        assert (await patient).status_code == 200


async def test_the_response_of_a_full_router_has_retry_after() -> None:
    worker = held()
    async with running_router(worker, max_inflight=1, max_queue=1) as router:
        requests = [post(router)]
        await until(lambda: len(worker.commands) == 1)
        requests.append(post(router))
        await wait_metric(router, "router_waiting", 1)
        answer = await router.http.post("/v1/completions", json=BODY)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", 429)
        assert error["message"].endswith("1 wait (limit: 1); try again in 1 s")
        async with grpc.aio.insecure_channel(router.grpc_address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                [each async for each in InferenceStub(channel).Generate(GenerateRequest(text="a"))]
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        worker.go_on.set()
        await asyncio.gather(*requests)
        assert await metric(router, "router_refusals_total") == 2


async def test_a_waiting_client_that_disconnects_leaves_the_queue() -> None:
    worker = held()
    async with running_router(worker, max_inflight=1) as router:
        first = post(router)
        await until(lambda: len(worker.commands) == 1)
        async with httpx.AsyncClient(base_url=router.url, trust_env=False, verify=False) as client:
            second = asyncio.create_task(client.post("/v1/completions", json=BODY))
            await wait_metric(router, "router_waiting", 1)
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
        async with grpc.aio.insecure_channel(router.grpc_address) as channel:
            call = InferenceStub(channel).Generate(GenerateRequest(text="a"))
            call.cancel()
        await wait_metric(router, "router_waiting", 0)
        worker.go_on.set()
        assert (await first).status_code == 200
        assert len(worker.commands) == 1


async def test_the_deadline_cancels_at_the_worker_and_returns_504() -> None:
    worker = held()
    async with running_router(worker, default_timeout_s=0.2) as router:
        for shape in ({}, {"n": 2}, {"prompt": ["a", "b"]}):
            answer = await router.http.post("/v1/completions", json={**BODY, **shape})
            assert answer.status_code == 504
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("timeout_error", 504)
            assert "exceeded its deadline" in error["message"]
        await until(lambda: len(worker.aborted) == len(worker.commands))
        await wait_metric(router, "router_inflight", 0)


async def test_a_deadline_in_mid_stream_is_an_event() -> None:
    worker = held()
    async with running_router(worker, default_timeout_s=0.2) as router:
        async with router.http.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as answer:
            assert answer.status_code == 200
            events = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
        assert len(events) == 2  # the first token, and the error
        assert orjson.loads(events[-1])["error"]["code"] == 504
        await until(lambda: len(worker.aborted) == 1)


async def test_the_deadline_is_deadline_exceeded_over_grpc() -> None:
    worker = held()
    async with (
        running_router(worker, default_timeout_s=0.2) as router,
        grpc.aio.insecure_channel(router.grpc_address) as channel,
    ):
        call = InferenceStub(channel).Generate(GenerateRequest(text="a", sampling=SamplingParams(max_tokens=4)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            [each async for each in call]
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: len(worker.aborted) == 1)


async def test_the_drain_serves_waiting_requests() -> None:
    worker = held()
    async with running_router(worker, max_inflight=1) as router:
        requests = [post(router), post(router)]
        await wait_metric(router, "router_waiting", 1)
        router.stopping.set()
        async with asyncio.timeout(10):
            while not await is_refused(router.url):
                await asyncio.sleep(0.005)
        worker.go_on.set()
        assert [answer.status_code for answer in await asyncio.gather(*requests)] == [200, 200]


async def test_waiting_requests_fail_at_the_drain_timeout() -> None:
    worker = held()
    async with running_router(worker, max_inflight=1, drain_timeout_s=0.05) as router:
        requests = [post(router), post(router)]
        await wait_metric(router, "router_waiting", 1)
        router.stopping.set()
        for answer in await asyncio.gather(*requests):
            assert answer.status_code == 503
            assert "its drain timeout has expired" in answer.json()["error"]["message"]


async def test_ttft_includes_the_wait_in_the_queue() -> None:
    worker = held()
    async with running_router(worker, max_inflight=1) as router:
        first = post(router, cache_salt="first")
        await until(lambda: len(worker.commands) == 1)
        waiting_s = time.monotonic()
        second = post(router, cache_salt="second")
        await wait_metric(router, "router_waiting", 1)
        await asyncio.sleep(0.2)
        waited_s = time.monotonic() - waiting_s
        worker.go_on.set()
        await asyncio.gather(first, second)
        assert await metric(router, "time_to_first_token_seconds_sum") > 0.2  # the first one has its token at once
        assert await metric(router, "e2e_request_latency_seconds_sum") > waited_s + 0.2
