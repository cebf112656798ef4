"""A model's experts over several decode workers, with a prefill worker that has all experts."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.deployment.local.ports import free_ports
from baton.engine.sampling.params import SamplingParams
from baton.process.child import ChildProcess
from baton.protos import worker_pb2
from benchmarks.server import served
from tests.adapters import make_adapter
from tests.integration.completion_load import complete, completion_load
from tests.integration.decode_client import decode_client
from tests.integration.handover.scripted_prefill import accept_only, scripted_prefill
from tests.integration.worker_process import WorkerProcess, worker_processes
from tests.integration.workers_view import pid_of, wait_all_ready, workers
from tests.marks import slow_case

NUM_PROMPTS, NUM_TOKENS = 8, 24


async def completions(url: str, model: str | None = None) -> list[str]:
    """Return the completions of some prompts, each with its logprobs. model: default is the base model."""
    answers = []
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False) as client:
        for index in range(NUM_PROMPTS):
            prompt = [300 + (index * 331 + position) % 3000 for position in range(40 * index + 1)]
            body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "logprobs": 1}
            response = await client.post("/v1/completions", json=body | ({"model": model} if model else {}))
            assert response.status_code == 200, response.text
            answers.append(response.json()["choices"][0]["logprobs"]["tokens"])
    return answers


@pytest.mark.slow
async def test_tokens_equal_one_ranks_through_handover(cluster_url: str) -> None:
    expected = await completions(cluster_url)
    flags = ("--prefill", "1", "--expert-parallel", "2", "--local-prefill-below", "0", "--dtype", "float32")
    async with served("", *flags) as url:
        await wait_all_ready(url)
        assert await completions(url) == expected
        loads = {worker["worker_id"]: worker["load"] for worker in await workers(url)}
    assert sorted(loads) == ["decode-0", "decode-1", "prefill-0"]
    assert sum(int(load["handovers"]) for load in loads.values()) > 0


@pytest.mark.slow
async def test_adapters_of_attention(tmp_path: Path) -> None:
    """All workers have them: the prefill worker has all experts, and the others share them."""
    bundled = Path(str(files("baton"))) / "bundled_model"
    adapter = make_adapter(bundled, tmp_path / "a", ["q_proj", "v_proj", "o_proj", "gate"], size=0.1)
    flags = ("--enable-lora", f"--lora-modules=a={adapter}", "--dtype", "float32")
    async with served("", "--colocated", "1", *flags) as url:
        await wait_all_ready(url)
        expected = await completions(url, "a")
        assert await completions(url) != expected
    async with served("", "--prefill", "1", "--expert-parallel", "2", "--local-prefill-below", "0", *flags) as url:
        await wait_all_ready(url)
        assert await completions(url, "a") == expected


@pytest.mark.parametrize("victim", ["decode-0", slow_case("decode-1")])  # the first has the epoch's store
async def test_a_rank_killed_under_load_costs_no_request_and_no_token(victim: str) -> None:
    flags = ("--prefill", "1", "--decode", "3", "--expert-parallel", "3", "--dtype", "float32")
    async with (
        served("", *flags, "--num-threads", "1") as url,
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False) as client,
        completion_load(*[client] * 4) as load,
    ):
        await load.more(3)
        incarnation = await incarnation_of(victim, url)
        os.kill(await pid_of(victim, url), signal.SIGKILL)
        await load.more(5)  # with the remaining ranks
        async with asyncio.timeout(60):
            while await incarnation_of(victim, url) in (incarnation, None):
                await asyncio.sleep(0.1)
        await load.more(5)  # with the restarted rank too


@pytest.mark.slow
async def test_a_rank_of_an_incomplete_group_waits_for_the_other() -> None:
    """It receives no new requests meanwhile, and continues its own once the group is complete."""
    flags = ("--decode", "2", "--expert-parallel", "2", "--min-expert-ranks", "2", "--dtype", "float32")
    async with (
        served("", *flags, "--num-threads", "1", "--failover-timeout-s", "120") as url,
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False) as client,
    ):
        await wait_all_ready(url)
        [staying] = [worker for worker in await workers(url) if worker["worker_id"] == "decode-0"]
        asking = [asyncio.create_task(complete(client, index, 200)) for index in range(4)]
        await wait_decode_0(url, lambda worker: int(worker["load"]["num_running"]) > 0)
        os.kill(await pid_of("decode-1", url), signal.SIGKILL)
        async with asyncio.timeout(60), grpc.aio.insecure_channel(staying["address"]) as channel:
            statuses = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            await wait_decode_0(url, lambda worker: worker["state"] == "short_of_ranks")
            async for answer in statuses:
                if answer.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                    break
            await asyncio.gather(*asking)  # once the other is back
            assert (await anext(aiter(statuses))).status == health_pb2.HealthCheckResponse.SERVING
        await wait_decode_0(url, lambda worker: worker["state"] == "ready")
        assert await incarnation_of("decode-0", url) == staying["incarnation"]


async def wait_decode_0(url: str, holds: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until the router's view of decode-0 meets the condition."""
    async with asyncio.timeout(60):
        while not any(worker["worker_id"] == "decode-0" and holds(worker) for worker in await workers(url)):
            await asyncio.sleep(0.02)


async def test_ranks_end_with_status_0_in_any_order(tmp_path: Path) -> None:
    """`ranks_of_a_group` checks the exit statuses."""
    async with ranks_of_a_group(tmp_path, 3) as ranks:
        ranks[0].child.terminate()  # the first, which has the epoch's store
        assert await ranks[0].child.wait() == 0
        for rank in ranks[1:]:
            assert (await rank.describe()).role == worker_pb2.WORKER_ROLE_DECODE


async def test_a_rank_that_waits_for_others_ends_with_status_0(tmp_path: Path) -> None:
    async with ranks_of_a_group(tmp_path, 2, "--min-expert-ranks=2") as ranks:
        ranks[1].child.kill()
        await wait_logged(tmp_path / "decode-0.log", "nothing is computed until more join")
        ranks[0].child.terminate()
        assert await ranks[0].child.wait() == 0
        assert " ERROR " not in (tmp_path / "decode-0.log").read_text()


@pytest.mark.slow
async def test_a_rank_that_waits_for_others_while_it_receives_kv_ends_after_its_drain(tmp_path: Path) -> None:
    async with (
        ranks_of_a_group(tmp_path, 2, "--min-expert-ranks=2", "--drain-timeout-s=0.1") as ranks,
        scripted_prefill(await ranks[0].describe(), accept_only) as (peer, prefill),
        decode_client(ranks[0]) as client,
    ):
        await client.submit(list(range(300, 400)), SamplingParams(max_tokens=2), peer)
        await prefill.began.wait()
        ranks[1].child.kill()
        await wait_logged(tmp_path / "decode-0.log", "nothing is computed until more join")
        assert await status_after_sigterm(ranks[0].child) == 0
        assert " ERROR " not in (tmp_path / "decode-0.log").read_text()


@pytest.mark.slow
async def test_a_rank_lost_without_a_rendezvous_makes_the_others_short_until_there_is_one(tmp_path: Path) -> None:
    [port] = free_ports("127.0.0.1", 1)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(rendezvous(port, "--drain-timeout-s=0"))
        ranks = await stack.enter_async_context(ranks_at(port, tmp_path, 2))
        client = await stack.enter_async_context(decode_client(ranks[0]))
        await first.aclose()
        sampling = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        await (await client.submit([300, 301, 302], sampling)).ended.wait()  # the group steps without a rendezvous
        ranks[1].child.kill()
        waiting = await client.submit([300, 301, 303], sampling)
        async with asyncio.timeout(30):
            while not (await anext(aiter(ranks[0].updates()))).short_of_ranks:
                await asyncio.sleep(0.05)
        health = health_pb2_grpc.HealthStub(ranks[0].channel)
        async for status in health.Watch(health_pb2.HealthCheckRequest()):
            if status.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                break
        assert not waiting.progressed.is_set()
        await stack.enter_async_context(rendezvous(port))
        async with asyncio.timeout(30):
            await waiting.ended.wait()
        assert len(waiting.token_ids) == 20


async def status_after_sigterm(child: ChildProcess, timeout_s: float = 30.0) -> int:
    """Terminate a process and return its exit status; kill it if it still runs after the timeout."""
    child.terminate()
    killing = asyncio.get_running_loop().call_later(timeout_s, child.kill)
    try:
        return await child.wait()
    finally:
        killing.cancel()


async def wait_logged(log: Path, text: str) -> None:
    """Wait until the log has the text."""
    async with asyncio.timeout(30):
        while text not in log.read_text():
            await asyncio.sleep(0.05)


@asynccontextmanager
async def ranks_of_a_group(directory: Path, size: int, *flags: str) -> AsyncIterator[list[WorkerProcess]]:
    """Start decode workers and their rendezvous; their logs are in the directory."""
    [port] = free_ports("127.0.0.1", 1)
    async with rendezvous(port), ranks_at(port, directory, size, *flags) as ranks:
        yield ranks


@asynccontextmanager
async def rendezvous(port: int, *flags: str) -> AsyncIterator[None]:
    """Run a rendezvous."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton.membership.rendezvous", f"--port={port}", "--log-level=warning", *flags
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


def ranks_at(port: int, directory: Path, size: int, *flags: str) -> AbstractAsyncContextManager[list[WorkerProcess]]:
    """Start decode workers whose rendezvous is at the port."""
    flags = (f"--expert-parallel={size}", f"--rendezvous=127.0.0.1:{port}", *flags)
    return worker_processes(Path(str(files("baton") / "bundled_model")), directory, *[("decode", *flags)] * size)


async def incarnation_of(worker_id: str, url: str) -> str | None:
    """Return the incarnation of a worker; None if it is not ready."""
    ready = {worker["worker_id"]: worker for worker in await workers(url) if worker["state"] == "ready"}
    return str(ready[worker_id]["incarnation"]) if worker_id in ready else None
