"""A stopped worker, whose connections stay open: only its silence reveals it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx
import orjson
import pytest

from benchmarks.server import served
from tests.integration.workers_view import pid_of, wait_all_ready

FAILOVER_S = 30.0
NUM_TOKENS = 800
BODY = {
    "prompt": list(range(300, 400)),
    "max_tokens": NUM_TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
    "return_token_ids": True,
}


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop the process during the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def tokens_of(response: httpx.Response) -> AsyncIterator[int]:
    """Yield the tokens of a streamed completion."""
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            body = orjson.loads(line.removeprefix("data: "))
            assert "choices" in body, body
            for choice in body["choices"]:
                for token in choice["token_ids"]:
                    yield token


@pytest.mark.slow
async def test_a_stopped_decode_workers_requests_continue_elsewhere() -> None:
    async with (
        served("", "--prefill", "1", "--decode", "2", "--dtype", "float32") as url,
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False) as client,
    ):
        await wait_all_ready(url)
        async with client.stream("POST", "/v1/completions", json=BODY) as response:
            expected = [token async for token in tokens_of(response)]
        async with client.stream("POST", "/v1/completions", json=BODY) as response:
            tokens = tokens_of(response)
            seen = [await anext(tokens)]
            with stopped(await pid_of(response.headers["x-baton-decode"], url)):
                async with asyncio.timeout(FAILOVER_S):
                    seen += [token async for token in tokens]
        assert len(expected) == NUM_TOKENS
        assert seen == expected
        text = (await client.get("/metrics")).text
        assert 'baton:failovers_total{model_name="baton-bundled"} 1.0' in text
