"""A router and workers that serve while garbage is written into their Redis."""

import random
from pathlib import Path

import pytest

import baton
from tests.faults.redis_garbage import garbage_in_redis
from tests.integration.membership.registry_router import registry_router, wait_ready_workers
from tests.integration.simulated_process import simulated
from tests.redis_server import redis_server

MODEL = Path(baton.__file__).parent / "bundled_model"
NUM_ROUNDS = 60
BODY = {"prompt": "Once upon a time there was a registry.", "max_tokens": 2, "temperature": 0}


@pytest.mark.slow
async def test_routers_serve_and_start_whatever_redis_holds(tmp_path: Path) -> None:
    rng = random.Random(3)
    async with redis_server(tmp_path / "redis") as redis, registry_router(redis.url, MODEL, tmp_path) as client:
        flags = ("--prefill=1", "--decode=1", "--worker-prefix=a-", "--model=bundled_model")
        async with simulated(*flags, f"--registry={redis.url}"):
            await wait_ready_workers(client, "a-prefill-0", "a-decode-0")
            for _ in range(NUM_ROUNDS):
                for _ in range(5):
                    await garbage_in_redis(redis.url, rng)
                answer = await client.post("/v1/completions", json=BODY)
                assert answer.status_code == 200, answer.text
            async with registry_router(redis.url, MODEL, tmp_path) as second:  # starts with the garbage that is stored
                await wait_ready_workers(second, "a-prefill-0", "a-decode-0")
                answer = await second.post("/v1/completions", json=BODY)
                assert answer.status_code == 200, answer.text
