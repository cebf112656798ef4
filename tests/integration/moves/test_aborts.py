"""Requests aborted at random moments leave no block held."""

import asyncio
import random
from pathlib import Path

import pytest

from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.worker_process import worker_processes
from tests.oracle import Oracle

NUM_REQUESTS = 300


@pytest.mark.slow
async def test_a_storm_of_aborts(tmp_path: Path) -> None:
    model = make_checkpoint("qwen3", tmp_path / "model")
    rng = random.Random(1)
    long = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    async with (
        worker_processes(model, tmp_path, ("prefill",), ("decode",)) as (prefill, decode),
        decode_client(decode) as client,
    ):
        peer, source = await prefill.peer(), await decode.peer()

        async def abort_one() -> None:
            prompt = [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(1, 100))]
            generation = await client.submit(prompt, long, peer, source if rng.random() < 0.3 else None)
            await asyncio.sleep(rng.random() * 0.01)  # a random moment of the request
            await client.abort(generation)

        for _ in range(NUM_REQUESTS // 20):
            await asyncio.gather(*(abort_one() for _ in range(20)))
        await asyncio.gather(decode.wait_idle(), prefill.wait_idle())
        prompt = [rng.randrange(3, VOCAB_SIZE) for _ in range(120)]
        generation = await client.generate(prompt, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), peer)
        assert generation.token_ids == Oracle(model).greedy(prompt, 12, generation.token_ids)
        assert generation.served_by.handed_over_tokens == len(prompt)
