"""Traces of real router, prefill and decode processes, and the timelines that `baton trace` shows."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from baton.__main__ import main
from tests.integration.router_process import MODEL, RouterProcess, router_process, wait_workers
from tests.integration.simulated_process import simulated
from tests.integration.worker_process import WorkerProcess, worker_processes
from tests.otlp_collector import Collector, grpc_collector, http_collector, silent_collector

PROMPT = "There was a quiet harbour, and the lamp by the door was blue. " * 12
CHAT = {
    "model": "bundled_model",
    "messages": [{"role": "user", "content": PROMPT}],
    "ignore_eos": True,
    "temperature": 0,
}
ROOT = "chat bundled_model"


@dataclass(frozen=True)
class Cluster:
    """A router with a prefill and two decode workers, each of them a process."""

    router: RouterProcess
    client: httpx.AsyncClient
    workers: list[WorkerProcess]


@asynccontextmanager
async def cluster(directory: Path, collector: Collector) -> AsyncIterator[Cluster]:
    """Run the processes, which export to the collector."""
    flag = f"--otlp-traces-endpoint={collector.endpoint}"
    roles = (("prefill", flag), ("decode", flag), ("decode", flag))
    async with worker_processes(MODEL, directory, *roles) as workers:  # type: ignore[arg-type]  # roles are literals
        addresses = ",".join(worker.address for worker in workers)
        flags = ("--port=0", f"--workers={addresses}", "--local-prefill-below=16", flag)
        async with router_process(directory, *flags) as router, router.client() as client:
            await wait_workers(client, 3)
            yield Cluster(router, client, workers)


@pytest.mark.slow
async def test_a_chat_over_three_processes_is_one_trace_with_one_timeline(tmp_path: Path) -> None:
    async with grpc_collector() as collector, cluster(tmp_path, collector) as running:
        headers = {"x-request-id": "one"}
        response = await running.client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 8}, headers=headers)
        usage = response.json()["usage"]
        await collector.until(lambda spans: {span.name for span in spans} >= {ROOT, "decode", "prefill"})
        [trace_id] = {span.trace_id for span in collector.spans}
        by_id = {span.span_id: span for span in collector.spans}
        names = []
        span = collector.named("prefill")
        while span is not None:
            names.append(span.name)
            span = by_id.get(span.parent_id)
        assert names == ["prefill", "kv_transfer", "decode", "attempt", ROOT]
        transfer, prefill = collector.named("kv_transfer").attributes, collector.named("prefill").attributes
        assert transfer["baton.transport"] == response.headers["x-baton-kv-transport"]
        assert transfer["baton.num_bytes"] > 0
        assert transfer["baton.transfer_s"] > 0
        assert prefill["baton.computed_tokens"] == usage["prompt_tokens"]
        assert collector.named("decode").attributes["gen_ai.usage.output_tokens"] == 8
        assert b"quiet harbour" not in collector.raw
        shown = await asyncio.to_thread(CliRunner().invoke, main, ["trace", "one", "--url", running.router.url])
        assert shown.exit_code == 0, shown.output
        assert trace_id in shown.output
        for name in ("admission", "tokenize", "plan", "kv_transfer", "prefill", "compute"):
            assert name in shown.output


@pytest.mark.slow
async def test_a_killed_decode_worker_leaves_an_attempt_in_the_same_trace(tmp_path: Path) -> None:
    async with http_collector() as collector, cluster(tmp_path, collector) as running:
        body = {**CHAT, "max_tokens": 400, "stream": True}
        num_events, killed = 0, ""
        async with running.client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                num_events += line.startswith("data: {")
                if num_events == 5 and not killed:
                    killed = response.headers["x-baton-decode"]
                    names = [(await worker.describe()).worker_id for worker in running.workers]
                    running.workers[names.index(killed)].child.kill()
        assert killed
        await collector.until(lambda spans: {span.name for span in spans} >= {ROOT, "decode"})
        attempts = [span for span in collector.spans if span.name == "attempt"]
        first, second = sorted(attempts, key=lambda span: span.start_ns)
        assert (first.is_error, second.is_error) == (True, False)
        assert first.attributes["baton.decode_worker"] == killed
        assert second.links == [first.span_id]
        root, decode = collector.named(ROOT), collector.named("decode")
        assert root.attributes["gen_ai.usage.output_tokens"] == 400
        assert decode.parent_id == second.span_id
        assert [name for name, _ in root.events] == ["retry"]


@pytest.mark.slow
async def test_a_collector_that_hangs_delays_neither_requests_nor_the_end(tmp_path: Path) -> None:
    with silent_collector() as address:
        for scheme in ("http", "grpc"):
            flag = f"--otlp-traces-endpoint={scheme}://{address}"
            async with simulated("--colocated=1", "--step-s=0.001", flag) as simulation:
                flags = ("--port=0", f"--workers={simulation['addresses']}", flag)
                async with router_process(tmp_path, *flags) as router, router.client() as client:
                    await wait_workers(client, 1)
                    body = {"model": "bundled_model", "prompt": "A prompt.", "max_tokens": 4}
                    for _ in range(20):
                        assert (await client.post("/v1/completions", json=body)).status_code == 200
                    begun_s = time.monotonic()
                    await router.end()
                    ended_s = time.monotonic() - begun_s
                assert ended_s < 10  # by itself a router ends within a second


@pytest.mark.slow
async def test_router_processes_find_each_others_timelines(tmp_path: Path) -> None:
    async with simulated("--colocated=1", "--step-s=0.001") as simulation:
        flags = ("--processes=2", "--port=0", f"--workers={simulation['addresses']}", "--keep-timelines=100")
        async with router_process(tmp_path, *flags, module=("baton", "router")) as router:
            async with router.client() as client:
                await wait_workers(client, 1)
            for number in range(12):  # each on a connection of its own, which either process accepts
                async with router.client() as client:
                    body = {"model": "bundled_model", "prompt": "A prompt.", "max_tokens": 2}
                    headers = {"x-request-id": f"request-{number}"}
                    assert (await client.post("/v1/completions", json=body, headers=headers)).status_code == 200
            async with router.client() as client:
                found = [await client.get(f"/timelines/request-{number}") for number in range(12)]
    assert [each.status_code for each in found] == [200] * 12
