"""Workers that are drained while they have requests."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from baton.protos.worker_pb2 import DrainRequest, UndrainRequest
from baton.protos.worker_pb2_grpc import WorkerStub
from baton.worker.health import LIVENESS
from benchmarks.server import served
from tests.integration.moves.drain_command import drain, undrain
from tests.integration.moves.test_stopped_worker import BODY, tokens_of
from tests.integration.workers_view import wait_all_ready, workers

NUM_TOKENS = 400
LONG_BODY = {**BODY, "max_tokens": NUM_TOKENS}


async def health(address: str, service: str) -> int:
    """Return the worker's health status."""
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await HealthStub(channel).Check(HealthCheckRequest(service=service), timeout=10)
        return int(answer.status)


async def wait_state(url: str, worker_id: str, state: str) -> None:
    """Wait until the router reports the worker in the state."""
    await wait_worker(url, worker_id, lambda worker: worker["state"] == state)


async def wait_running(url: str, worker_id: str) -> None:
    """Wait until the worker runs a request."""
    await wait_worker(url, worker_id, lambda worker: worker["load"]["num_running"] > 0)


async def wait_worker(url: str, worker_id: str, holds: Callable[[dict[str, Any]], bool]) -> None:
    async with asyncio.timeout(60):
        while not any(worker["worker_id"] == worker_id and holds(worker) for worker in await workers(url)):
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_drained_decode_workers_request_migrates_with_its_kv() -> None:
    async with (
        served("", "--prefill", "1", "--decode", "2", "--dtype", "float32") as url,
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False) as client,
    ):
        await wait_all_ready(url)
        async with client.stream("POST", "/v1/completions", json=LONG_BODY) as response:
            expected = [token async for token in tokens_of(response)]
        async with client.stream("POST", "/v1/completions", json={**LONG_BODY, "cache_salt": "another"}) as response:
            tokens = tokens_of(response)
            seen = [await anext(tokens) for _ in range(40)]
            leaving = response.headers["x-baton-decode"]
            addresses = {worker["worker_id"]: worker["address"] for worker in await workers(url)}
            async with grpc.aio.insecure_channel(addresses[leaving]) as channel:
                await WorkerStub(channel).Drain(DrainRequest(timeout_s=0.05))
            seen += [token async for token in tokens]
        assert len(expected) == NUM_TOKENS
        assert seen == expected
        await wait_state(url, leaving, "drained")
        states = {worker["worker_id"]: worker for worker in await workers(url)}
        left = states.pop(leaving)
        assert await health(left["address"], LIVENESS) == HealthCheckResponse.SERVING
        async with asyncio.timeout(20):  # its watchdog says so
            while await health(left["address"], "") != HealthCheckResponse.NOT_SERVING:
                await asyncio.sleep(0.05)
        [staying] = [worker for worker in states.values() if worker["role"] == "decode"]
        assert int(staying["load"]["handover_bytes"]) > 0  # the other worker pulled the KV
        assert int(staying["load"]["num_prefilled_tokens"]) < len(BODY["prompt"])  # and did not prefill again
        text = (await client.get("/metrics")).text
        assert 'baton:requests_handed_off_total{model_name="baton-bundled"} 1.0' in text
        assert 'baton:failovers_total{model_name="baton-bundled"} 0.0' in text
        response = await client.post("/v1/completions", json={**BODY, "stream": False, "max_tokens": 3})
        assert response.headers["x-baton-decode"] != leaving


@pytest.mark.slow
async def test_an_undrained_worker_serves_again_with_the_same_tokens() -> None:
    async with (
        served("", "--prefill", "1", "--decode", "1", "--dtype", "float32") as url,
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False) as client,
    ):
        await wait_all_ready(url)

        async def tokens(num_tokens: int) -> list[int]:
            body = {**BODY, "max_tokens": num_tokens}
            async with client.stream("POST", "/v1/completions", json=body) as response:
                assert response.status_code == 200
                assert response.headers["x-baton-decode"] == "decode-0"
                return [token async for token in tokens_of(response)]

        expected = await tokens(40)
        for worker in ("decode-0", "prefill-0"):
            refusal = await drain(url, worker)
            assert f"{worker} is the last {worker[:-2]} worker that accepts requests" in refusal
            assert f"`baton undrain {worker}` puts it back" in refusal
            assert await drain(url, worker, "--force") == f"{worker} is drained\n"
            await wait_state(url, worker, "drained")
        assert (await client.post("/v1/completions", json={**BODY, "stream": False})).status_code == 503
        addresses = {worker["worker_id"]: worker["address"] for worker in await workers(url)}
        for worker in ("decode-0", "prefill-0", "decode-0"):  # the last one is serving already
            assert await undrain(url, worker) == f"{worker} accepts requests again\n"
            await wait_state(url, worker, "ready")
        async with asyncio.timeout(20):  # its watchdog says so
            while await health(addresses["decode-0"], "") != HealthCheckResponse.SERVING:
                await asyncio.sleep(0.05)
        assert await tokens(40) == expected
        running = asyncio.create_task(tokens(1000))
        await wait_running(url, "decode-0")
        async with grpc.aio.insecure_channel(addresses["decode-0"]) as channel:
            draining = WorkerStub(channel).Drain(DrainRequest(timeout_s=300))
            await wait_state(url, "decode-0", "draining")
            await WorkerStub(channel).Undrain(UndrainRequest())
            assert await draining.code() is grpc.StatusCode.FAILED_PRECONDITION
            await wait_state(url, "decode-0", "ready")
        assert await tokens(40) == expected
        assert (await running)[:40] == expected


async def test_a_drain_of_an_unknown_worker_lists_the_workers(cluster_url: str) -> None:
    assert "has no worker decode-7; it has decode-0, prefill-0" in await drain(cluster_url, "decode-7")
