"""Simulated workers in a separate process, with a real router."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from baton.process.child import ChildProcess, ProcessSpec
from baton.process.progress import Failed, Ready
from baton.protos import worker_pb2, worker_pb2_grpc
from tests.integration.membership.registry_router import registry_router, wait_ready_workers
from tests.integration.simulated_process import simulated
from tests.integration.workers_view import wait_all_ready, wait_idle
from tests.redis_server import redis_server

MODEL = Path(__file__).parents[2] / "baton" / "bundled_model"


@asynccontextmanager
async def router_of(addresses: str, directory: Path, *flags: str) -> AsyncIterator[str]:
    """Run a router for the workers and yield its URL."""
    log = directory / "router.log"
    argv = (sys.executable, "-m", "baton.router", f"--model={MODEL}", "--port=0", f"--workers={addresses}", *flags)
    child = await ChildProcess.start(ProcessSpec("router", argv, log))
    try:
        async for progress in child.progress():
            assert not isinstance(progress, Failed), progress
            if isinstance(progress, Ready):
                async with asyncio.timeout(60):
                    await wait_all_ready(f"http://{progress.address}")
                yield f"http://{progress.address}"
                break
    finally:
        child.terminate()
        status = await child.wait()
        child.close()
    assert status == 0, log.read_text()
    assert "Traceback" not in log.read_text(), log.read_text()


async def ask(client: httpx.AsyncClient, prompt: str, max_tokens: int) -> dict[str, Any]:
    """Request one completion."""
    body = {"model": "bundled_model", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_router_serves_through_simulated_workers(tmp_path: Path) -> None:
    # Slow prefill, so that a cache hit is worth more than an idle worker.
    flags = ("--prefill=2", "--decode=2", "--colocated=1", "--step-s=0.002", "--prefill-tokens-per-s=4000")
    async with simulated(*flags) as simulation, router_of(simulation["addresses"], tmp_path) as url:
        assert [worker["role"] for worker in simulation["workers"]] == ["prefill"] * 2 + ["decode"] * 2 + ["both"]
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client:
            prompts = [f"Once upon a time there was a number {index % 8}. " * 30 for index in range(40)]
            first = await asyncio.gather(*(ask(client, prompt, 12) for prompt in prompts))
            for index, answer in enumerate(first):
                assert answer["usage"]["completion_tokens"] == 12
                assert answer["choices"][0]["text"] == first[index % 8]["choices"][0]["text"]
            assert len({answer["choices"][0]["text"] for answer in first}) == 8
            again = [await ask(client, prompt, 12) for prompt in prompts[:8]]
            for before, answer in zip(first, again, strict=False):
                usage = answer["usage"]
                assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 16
                assert answer["choices"][0]["text"] == before["choices"][0]["text"]
        async with asyncio.timeout(60):  # the router learns of a worker's load with its next report
            while sum(int(worker["load"]["num_generated_tokens"]) for worker in await wait_idle(url)) < 48 * 12:
                await asyncio.sleep(0.01)


async def test_no_tenant_can_infer_anothers_prompts_from_timing(tmp_path: Path) -> None:
    prompt = "The password of the house by the sea is a word that nobody would guess. " * 12
    async with (
        simulated("--colocated=1", "--prefill-tokens-per-s=1000") as simulation,
        router_of(simulation["addresses"], tmp_path) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):

        async def took(salt: str) -> tuple[float, dict[str, Any]]:
            body = {"prompt": prompt, "max_tokens": 1, "cache_salt": salt}
            started_s = time.monotonic()
            answer = (await client.post("/v1/completions", json=body)).json()
            return time.monotonic() - started_s, answer["usage"]

        for salt in ("one tenant", "another", ""):
            elapsed_s, usage = await took(salt)
            assert usage["prompt_tokens_details"]["cached_tokens"] == 0
            assert elapsed_s > usage["prompt_tokens"] / 1000 > 0.1  # the whole prompt was prefilled
            _, usage = await took(salt)
            assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 16


@pytest.mark.slow
async def test_router_finds_simulated_workers_in_redis(tmp_path: Path) -> None:
    async with redis_server(tmp_path / "redis") as redis, registry_router(redis.url, MODEL, tmp_path) as client:
        flags = ("--prefill=1", "--decode=2", "--worker-prefix=a-", "--model=bundled_model")
        async with simulated(*flags, f"--registry={redis.url}"):
            await wait_ready_workers(client, "a-prefill-0", "a-decode-0", "a-decode-1")
            answer = await ask(client, "Once upon a time there was a registry. " * 20, 4)
            assert answer["usage"]["completion_tokens"] == 4
        await wait_ready_workers(client)


@pytest.mark.slow
async def test_workers_leave_an_unresponsive_registry_concurrently(tmp_path: Path) -> None:
    async with redis_server(tmp_path / "redis") as redis:
        async with asyncio.timeout(60) as limit:  # a fifth of 100 sequential Redis timeouts
            async with simulated("--colocated=100", "--num-blocks=64", f"--registry={redis.url}"):
                redis.pause()
        assert not limit.expired()
        redis.resume()


@pytest.mark.slow
async def test_two_thousand_workers_in_a_process() -> None:
    async with simulated("--colocated=2000", "--num-blocks=256") as simulation:
        addresses = simulation["addresses"].split(",")
        assert len(set(addresses)) == 2000
        ids: set[str] = set()

        async def describe(mine: list[str]) -> None:
            for address in mine:
                async with grpc.aio.insecure_channel(address) as channel:
                    stub = worker_pb2_grpc.WorkerStub(channel)
                    ids.add((await stub.Describe(worker_pb2.DescribeRequest())).worker_id)

        async with asyncio.timeout(60):
            await asyncio.gather(*(describe(addresses[start::8]) for start in range(8)))
        assert ids == {f"both-{index}" for index in range(2000)}
