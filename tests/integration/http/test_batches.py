"""Batches with the real client and the bundled model: they survive the routers that run them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import Batch

from tests.integration.router_process import MODEL, RouterProcess, router_process, wait_workers
from tests.integration.worker_process import worker_process, worker_processes
from tests.unit.router.batches.batch_client import CHAT, chat_line, ended, results, start

NUM_LINES = 60
FEW = 5  # lines that have results when the router is killed


def lines() -> list[dict[str, Any]]:
    """Return greedy and seeded requests."""
    return [
        chat_line(
            f"line {number}", f"What does json.{number}dumps do?", model="baton-bundled", max_tokens=24,
            **({"temperature": 0} if number % 2 else {"temperature": 1, "seed": number}),
        )
        for number in range(NUM_LINES)
    ]  # fmt: skip


@dataclass(frozen=True)
class Deployment:
    """Real workers, and routers that share a folder."""

    directory: Path
    flags: tuple[str, ...]
    stack: AsyncExitStack

    async def router(self, *flags: str) -> tuple[RouterProcess, openai.AsyncOpenAI]:
        """Start a router, and return it with a client."""
        router = await self.stack.enter_async_context(router_process(self.directory, "--port=0", *self.flags, *flags))
        async with router.client() as http:
            await wait_workers(http, 2)
        http = httpx.AsyncClient(trust_env=False, verify=False, timeout=60)
        client = openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, http_client=http)
        return router, await self.stack.enter_async_context(client)


@asynccontextmanager
async def deployment(directory: Path) -> AsyncIterator[Deployment]:
    """Run the workers."""
    roles: Any = (("prefill", "--dtype", "float32"), ("decode", "--dtype", "float32"))
    async with worker_processes(MODEL, directory, *roles) as workers, AsyncExitStack() as stack:
        addresses = ",".join(worker.address for worker in workers)
        flags = (f"--workers={addresses}", f"--files-dir={directory / 'files'}", "--served-model-name=baton-bundled")
        yield Deployment(directory, flags, stack)


async def until_running(client: openai.AsyncOpenAI, batch: Batch) -> None:
    """Wait until a few requests have results."""
    async with asyncio.timeout(60):
        while (await client.batches.retrieve(batch.id)).request_counts.completed < FEW:  # type: ignore[union-attr]
            await asyncio.sleep(0.02)


async def num_running(router: RouterProcess) -> float:
    """Return the number of batches that a router owns."""
    async with router.client() as http:
        page = (await http.get("/metrics")).text
    [line] = [line for line in page.splitlines() if line.startswith("baton:batches_running{")]
    return float(line.rsplit(" ", 1)[1])


async def check_outputs(client: openai.AsyncOpenAI, router: RouterProcess, batch: Batch) -> None:
    """Check that each request has exactly the output of a single request."""
    assert (batch.status, batch.error_file_id) == ("completed", None)
    output = await results(client, batch.output_file_id)
    assert output.keys() == {line["custom_id"] for line in lines()}
    async with router.client() as http:
        for line in lines():
            single = (await http.post(CHAT, json=line["body"])).json()
            assert output[line["custom_id"]]["response"]["body"]["choices"] == single["choices"]


@pytest.mark.slow
async def test_a_killed_router_continues_its_batch_after_a_restart(tmp_path: Path) -> None:
    async with deployment(tmp_path) as deployed:
        first, client = await deployed.router("--batch-inflight=4")
        batch = await start(client, lines())
        await until_running(client, batch)
        await first.kill()
        [journal] = tmp_path.glob("files/tenants/*/batches/active/*/output/content")
        written = journal.read_bytes()
        num_written = written.count(b"\n")
        assert FEW <= num_written < NUM_LINES
        with journal.open("ab") as file:
            file.write(b'{"id": "batch_req_torn", "custom_id": "line')  # what a power failure may leave
        second, client = await deployed.router()
        batch = await ended(client, batch)
        await check_outputs(client, second, batch)
        assert batch.output_file_id is not None
        content = (await client.files.content(batch.output_file_id)).content
        assert content.startswith(written[: written.rindex(b"\n") + 1])  # no finished request ran again


@pytest.mark.slow
async def test_the_death_of_its_router_moves_a_batch_to_another(tmp_path: Path) -> None:
    async with deployment(tmp_path) as deployed:
        pairs = [await deployed.router("--batch-inflight=4") for _ in range(2)]
        batch = await start(pairs[0][1], lines())
        for _, client in pairs:
            await until_running(client, batch)
        counts = [await num_running(router) for router, _ in pairs]
        assert sorted(counts) == [0, 1]
        (owner, _), (other, client) = sorted(pairs, key=lambda pair: counts[pairs.index(pair)], reverse=True)
        cancelled = await start(client, lines())
        assert (await pairs[0][1].batches.cancel(cancelled.id)).status == "cancelling"
        await owner.kill()
        await check_outputs(client, other, await ended(client, batch))
        rest = await ended(client, cancelled)
        assert rest.status == "cancelled"
        output, errors = [await results(client, each) for each in (rest.output_file_id, rest.error_file_id)]
        assert output.keys() | errors.keys() == {line["custom_id"] for line in lines()}
        assert len(output) + len(errors) == NUM_LINES
        assert json.dumps(errors).count("batch_cancelled") == len(errors)


async def test_embeddings_and_completions_in_batches(tmp_path: Path) -> None:
    async with worker_process("both", MODEL, tmp_path, "--dtype=float32", "--pooling=last") as worker:
        flags = ("--port=0", f"--workers={worker.address}", f"--files-dir={tmp_path / 'files'}")
        async with router_process(tmp_path, *flags) as router, router.client() as http:
            await wait_workers(http, 1)
            api_client = httpx.AsyncClient(trust_env=False, verify=False, timeout=60)
            base_url = f"{router.url}/v1"
            async with openai.AsyncOpenAI(base_url=base_url, api_key="none", http_client=api_client) as client:
                bodies: dict[str, dict[str, Any]] = {
                    "/v1/embeddings": {"input": ["one", "two"]},
                    "/v1/completions": {"prompt": ["def f", "class A"], "n": 2, "seed": 1, "max_tokens": 5},
                }
                for url, body in bodies.items():
                    lines = [
                        {"custom_id": f"{number}", "method": "POST", "url": url, "body": body} for number in range(9)
                    ]
                    batch = await ended(client, await start(client, lines, endpoint=url))
                    assert batch.status == "completed"
                    output = await results(client, batch.output_file_id)
                    single = (await http.post(url, json=body)).json()
                    parts = "data" if url == "/v1/embeddings" else "choices"
                    assert len(output) == 9
                    for line in output.values():
                        assert line["response"]["body"][parts] == single[parts]
