"""Images on several ranks: handovers between workers of different shapes, and requests that are cancelled."""

import asyncio
import random
from pathlib import Path

import pytest

from baton.engine.sampling.params import SamplingParams
from tests.integration.decode_client import decode_client
from tests.integration.worker_process import worker_processes
from tests.vision_checkpoints import VisionOracle, make_vision_checkpoint, prompt_of, random_image, random_text

pytestmark = pytest.mark.slow

NUM_TOKENS = 16
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
FLAGS = ("--kv-shards=2", "--max-num-batched-tokens=24", "--max-num-seqs=16", "--dtype=float32")
PROMPTS = (
    prompt_of([random_text(7, 1), random_image(3, 5, 1), random_text(30, 2)]),
    prompt_of([random_image(6, 7, 2), random_text(3, 3), random_image(5, 3, 3), random_text(4, 4)]),
    prompt_of([random_text(50, 5), random_image(4, 4, 4)]),
    prompt_of([random_text(60, 6)]),
)


@pytest.mark.parametrize(
    ("num_prefill", "num_decode", "transport"), [(2, 1, "shared_memory"), (1, 2, "tcp"), (2, 2, "tcp")]
)
async def test_a_handover_between_workers_of_different_shapes(
    num_prefill: int, num_decode: int, transport: str, tmp_path: Path
) -> None:
    model = make_vision_checkpoint(tmp_path / "model")
    oracle = VisionOracle(model)
    shapes = [("prefill", f"--tensor-parallel={num_prefill}"), ("decode", f"--tensor-parallel={num_decode}")]
    workers = worker_processes(model, tmp_path, *((*shape, f"--transport={transport}", *FLAGS) for shape in shapes))
    async with workers as (prefill, decode), decode_client(decode) as client:
        peer = await prefill.peer()
        for _ in range(2):  # then with hits
            running = [await client.submit(tokens, GREEDY, peer, images=images) for tokens, images in PROMPTS]
            for (tokens, images), generation in zip(PROMPTS, running, strict=True):
                await generation.ended.wait()
                assert generation.token_ids == oracle.greedy(tokens, images, NUM_TOKENS)
        load = await decode.wait_idle()
        assert (load.handovers >= len(PROMPTS), load.handover_failures) == (True, 0)
        await prefill.wait_idle()


async def test_cancelled_requests_leave_nothing_held(tmp_path: Path) -> None:
    model = make_vision_checkpoint(tmp_path / "model")
    shapes = [("prefill", "--tensor-parallel=2"), ("decode", "--tensor-parallel=2")]
    rng = random.Random(7)
    workers = worker_processes(model, tmp_path, *((*shape, *FLAGS) for shape in shapes))
    async with workers as (prefill, decode), decode_client(decode) as client:
        peer = await prefill.peer()
        for seed in range(8):
            tokens, images = prompt_of([random_text(50, seed), random_image(8, 8, seed), random_text(200, seed)])
            generation = await client.submit(tokens, GREEDY, peer, images=images)
            await asyncio.sleep(rng.uniform(0, 0.1))  # a random moment of the handover
            await client.abort(generation)
        await decode.wait_idle()
        await prefill.wait_idle()
        tokens, images = PROMPTS[1]
        generation = await client.submit(tokens, GREEDY, peer, images=images)
        await generation.ended.wait()
        assert generation.token_ids == VisionOracle(model).greedy(tokens, images, NUM_TOKENS)
