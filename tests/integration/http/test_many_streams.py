"""Two prefill and two decode workers under many concurrent streams, some of them cancelled."""

import asyncio
import random

import httpx
import orjson
import pytest

from benchmarks.server import served
from tests.integration.workers_view import wait_all_ready, wait_idle

NUM_REQUESTS = 120


async def stream(client: httpx.AsyncClient, body: dict[str, object], cut_after: int | None) -> list[int]:
    """Return token ids of a streamed completion; close the connection after `cut_after` of them."""
    tokens: list[int] = []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == httpx.codes.OK, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                for choice in orjson.loads(line[6:])["choices"]:
                    tokens += choice.get("token_ids") or []
            if cut_after is not None and len(tokens) >= cut_after:
                return tokens
        assert line == "" or line == "data: [DONE]"
    return tokens


@pytest.mark.slow
async def test_all_streams_are_complete_and_all_blocks_are_freed() -> None:
    rng = random.Random(1)
    shared = [rng.randrange(300, 3000) for _ in range(300)]
    bodies, cuts = [], []
    for _ in range(NUM_REQUESTS):
        prompt = shared[: rng.choice([0, 0, 64, 200, 300])] + [
            rng.randrange(300, 3000) for _ in range(rng.choice([1, 20, 100, 400]))
        ]
        bodies.append(
            {
                "prompt": prompt,
                "max_tokens": rng.randint(1, 60),
                "temperature": rng.choice([0.0, 0.8]),
                "seed": rng.randrange(1 << 30),
                "ignore_eos": True,
                "stream": True,
                "return_token_ids": True,
            }
        )
        cuts.append(rng.randint(1, 20) if rng.random() < 0.1 else None)
    async with served("", "--prefill", "2", "--decode", "2", "--dtype", "float32") as url:
        await wait_all_ready(url)
        limits = httpx.Limits(max_connections=NUM_REQUESTS)
        async with httpx.AsyncClient(base_url=url, timeout=240, limits=limits, trust_env=False, verify=False) as client:
            jobs = zip(bodies, cuts, strict=True)
            outputs = await asyncio.gather(*(stream(client, body, cut) for body, cut in jobs))
            seen = await wait_idle(url)
            for body, cut, tokens in zip(bodies, cuts, outputs, strict=True):
                assert len(tokens) == body["max_tokens"] or (cut is not None and len(tokens) >= cut)
            for index in rng.sample([i for i in range(NUM_REQUESTS) if cuts[i] is None], 12):
                assert await stream(client, bodies[index], None) == outputs[index]  # alone, and mostly from the cache
            await wait_idle(url)
        assert sum(int(worker["load"]["handovers"]) for worker in seen) > NUM_REQUESTS / 3
        assert sum(int(worker["load"]["handover_failures"]) for worker in seen) == 0
        used = [worker["worker_id"] for worker in seen if int(worker["load"]["num_generated_tokens"])]
        assert used == [worker["worker_id"] for worker in seen], "every worker was meant to get work"
