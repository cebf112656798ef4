"""Triton's client, which has an environment of its own, against a real cluster."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from benchmarks.server import free_port, served
from tests.integration.workers_view import pid_of, wait_all_ready, wait_idle

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venv" / "clients" / "bin" / "python"
SCRIPT = ROOT / "tests" / "clients" / "tritonclient_llm.py"
PROMPT = "The quick brown fox jumps over the lazy dog. " * 4
TIMEOUT_S = 240.0
NUM_SEEN = 40  # responses in front of the kill


class Cluster:
    """Addresses of a cluster."""

    def __init__(self, url: str, grpc_address: str, model: str) -> None:
        self.url = url
        self.grpc_address = grpc_address
        self.model = model

    async def completion(self, **options: object) -> str:
        """Return the output of the completions API."""
        body = {"prompt": PROMPT, "temperature": 0, **options}
        async with httpx.AsyncClient(base_url=self.url, timeout=TIMEOUT_S, trust_env=False) as client:
            response = (await client.post("/v1/completions", json=body)).json()
        return str(response["choices"][0]["text"])

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start the client."""
        assert PYTHON.exists(), "the client libraries are not installed: `make test-all` installs them"
        fixed = (SCRIPT, self.url, self.grpc_address, self.model, PROMPT)
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(PYTHON, *fixed, *arguments, stdout=pipe, stderr=pipe)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster() -> AsyncIterator[Cluster]:
    """Run a prefill worker and two decode workers, in fp32 so that batching does not change tokens."""
    port = free_port()
    flags = ("--prefill", "1", "--decode", "2", "--dtype", "float32", "--num-threads", "1")
    async with served("", *flags, "--grpc-port", str(port)) as url:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
        yield Cluster(url, f"127.0.0.1:{port}", model)


@pytest.mark.slow
async def test_inferences_with_tritons_client(cluster: Cluster) -> None:
    text = await cluster.completion(max_tokens=24, ignore_eos=True)
    client = await cluster.start(text)
    _, errors = await asyncio.wait_for(client.communicate(), TIMEOUT_S)
    assert client.returncode == 0, errors.decode()
    await asyncio.wait_for(wait_idle(cluster.url), TIMEOUT_S)  # cancelled requests leave nothing behind


@pytest.mark.slow
async def test_a_stream_continues_on_another_worker_with_the_same_text(cluster: Cluster) -> None:
    options = {"max_tokens": 1500, "temperature": 1, "seed": 11, "ignore_eos": True}
    same = await cluster.completion(**options)
    await wait_all_ready(cluster.url)
    client = await cluster.start(json.dumps(options), "stream")
    assert client.stdout is not None
    assert client.stderr is not None
    texts = [json.loads(await asyncio.wait_for(client.stdout.readline(), TIMEOUT_S)) for _ in range(NUM_SEEN)]
    async with httpx.AsyncClient(base_url=cluster.url, trust_env=False) as http:
        seen = (await http.get("/workers")).json()["workers"]
    [busy] = [each["worker_id"] for each in seen if each["role"] == "decode" and each["load"]["num_running"]]
    os.kill(await pid_of(busy, cluster.url), signal.SIGKILL)
    texts += [json.loads(line) async for line in client.stdout]
    assert await client.wait() == 0, (await client.stderr.read()).decode()
    assert "".join(texts) == same
    async with httpx.AsyncClient(base_url=cluster.url, trust_env=False) as http:
        metrics = (await http.get("/metrics")).text
    [failovers] = [line for line in metrics.splitlines() if line.startswith("baton:failovers_total{")]
    assert float(failovers.rsplit(" ", 1)[1]) == 1  # the kill was in time
