"""Models with recurrent layers on several ranks: moves of their states between workers of different shapes."""

import asyncio
import os
import random
import signal
from functools import partial
from pathlib import Path

import httpx
import pytest

from baton.engine.sampling.params import SamplingParams
from benchmarks.server import served
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.handover.one_engine import NUM_BATCHED_TOKENS, Colocated, random_prompts
from tests.integration.handover.test_architectures import any_tokenizer
from tests.integration.worker_process import worker_processes
from tests.integration.workers_view import pid_of, wait_all_ready, workers
from tests.oracle import Oracle

pytestmark = pytest.mark.slow

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
COMMON = (
    *("--dtype=float32", f"--max-num-batched-tokens={NUM_BATCHED_TOKENS}", "--max-num-seqs=16"),
    *("--state-checkpoint-tokens=32", "--kv-shards=2"),
)
LENGTHS = (1, 20, 64, 230)


@pytest.mark.parametrize(
    ("architecture", "num_prefill", "num_decode", "transport", "kv_dtype"),
    [
        ("qwen3-next", 1, 2, "shared_memory", "auto"),
        ("qwen3-next", 2, 1, "tcp", "auto"),
        ("qwen3-next", 2, 2, "shared_memory", "int8"),
        ("nemotron-h", 1, 2, "tcp", "auto"),
        ("nemotron-h", 2, 1, "shared_memory", "auto"),
        ("nemotron-h", 2, 1, "tcp", "int8"),
        ("falcon-h1", 2, 1, "shared_memory", "auto"),
        ("mamba2", 1, 2, "nixl", "auto"),
        ("qwen3-next", 4, 1, "shared_memory", "auto"),  # two shards on four ranks
    ],
)
async def test_a_handover_between_workers_of_different_shapes(
    architecture: str, num_prefill: int, num_decode: int, transport: str, kv_dtype: str, tmp_path: Path
) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    expected = (
        Colocated(model, kv_dtype).greedy
        if kv_dtype != "auto"
        else partial(Oracle(model).greedy, count=GREEDY.max_tokens)
    )
    flags = (*COMMON, f"--transport={transport}", f"--kv-cache-dtype={kv_dtype}")
    shapes = [("prefill", f"--tensor-parallel={num_prefill}"), ("decode", f"--tensor-parallel={num_decode}")]
    processes = worker_processes(model, tmp_path, *((*shape, *flags) for shape in shapes))
    prompts = random_prompts(1, *LENGTHS)
    follow_ups = [[*prompt, *rest] for prompt, rest in zip(prompts, random_prompts(2, 30, 3, 50, 70), strict=True)]
    async with processes as (prefill, decode), decode_client(decode) as client:
        peer = await prefill.peer()
        for group in (prompts, follow_ups, prompts):  # the later ones begin in prefix caches
            generations = await asyncio.gather(*(client.generate(prompt, GREEDY, peer) for prompt in group))
            for prompt, generation in zip(group, generations, strict=True):
                assert generation.served_by.prefill_worker == peer.worker_id
                assert generation.token_ids == expected(prompt)
        load = await decode.wait_idle()
        assert load.handovers > 8
        assert load.handover_failures == 0
        await prefill.wait_idle()


@pytest.mark.parametrize("architecture", ["qwen3-next", "mamba2"])
async def test_a_prefix_is_pulled_from_a_worker_of_a_different_shape(architecture: str, tmp_path: Path) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    oracle = Oracle(model)
    shapes = [("decode", "--tensor-parallel=2"), ("decode", "--tensor-parallel=1")]
    async with worker_processes(model, tmp_path, *((*shape, *COMMON) for shape in shapes)) as both:
        for seed, (source, puller) in enumerate((both, both[::-1])):
            [prompt] = random_prompts(seed, 155)
            async with decode_client(source) as client:
                await client.generate(prompt, GREEDY)
            async with decode_client(puller) as client:
                pulled = await client.submit(prompt, GREEDY, prefix_source=await source.peer())
                await pulled.ended.wait()
            assert pulled.token_ids == oracle.greedy(prompt, GREEDY.max_tokens, pulled.token_ids)
            assert pulled.served_by.prefix_pulled_tokens == 128
            await source.wait_idle()
            await puller.wait_idle()


@pytest.mark.parametrize(("architecture", "pool"), [("qwen3-next", "180KiB"), ("nemotron-h", "96KiB")])
async def test_requests_that_outgrow_the_pool_are_preempted(architecture: str, pool: str, tmp_path: Path) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    oracle, rng = Oracle(model), random.Random(5)
    shapes = [("prefill", "--tensor-parallel=1"), ("decode", "--tensor-parallel=2", f"--kv-cache-memory-bytes={pool}")]
    greedy = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    crowd = [[rng.randrange(3, VOCAB_SIZE) for _ in range(110)] for _ in range(4)]
    async with (
        worker_processes(model, tmp_path, *((*shape, *COMMON) for shape in shapes)) as (prefill, decode),
        decode_client(decode) as client,
    ):
        peer = await prefill.peer()
        for plan in (peer, None):
            generations = await asyncio.gather(*(client.generate(prompt, greedy, plan) for prompt in crowd))
            for prompt, generation in zip(crowd, generations, strict=True):
                assert generation.token_ids == oracle.greedy(prompt, greedy.max_tokens, generation.token_ids)
        load = await decode.wait_idle()
        await prefill.wait_idle()
    assert load.num_preemptions > 0, "the pool was meant to be too small"


@pytest.mark.parametrize(
    ("architecture", "shape"),
    [
        ("qwen3-next", ("--decode=2", "--tensor-parallel=2")),
        ("nemotron-h", ("--decode=2", "--tensor-parallel=2", "--prefill-tensor-parallel=2")),
        ("qwen3-next", ("--decode=2", "--expert-parallel=2")),
        ("nemotron-h-moe", ("--decode=2", "--expert-parallel=2", "--prefill-tensor-parallel=2")),
    ],
)
async def test_a_killed_decode_worker_costs_no_token(architecture: str, shape: tuple[str, ...], tmp_path: Path) -> None:
    model = make_checkpoint(architecture, tmp_path / "model", tokenizer=any_tokenizer(), max_position_embeddings=1024)
    oracle, prompts = Oracle(model), random_prompts(6, 150, 90, 40, 151)
    flags = ("--prefill=1", *shape, "--dtype=float32", "--state-checkpoint-tokens=32", "--local-prefill-below=0")

    async def complete(client: httpx.AsyncClient, prompt: list[int]) -> list[int]:
        body = {"prompt": prompt, "max_tokens": 150, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        response = await client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        tokens: list[int] = response.json()["choices"][0]["token_ids"]
        return tokens

    async with (
        served(str(model), *flags, "--num-threads", "1") as url,
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False) as client,
    ):
        await wait_all_ready(url)
        asking = [asyncio.create_task(complete(client, prompt)) for prompt in prompts]
        async with asyncio.timeout(60):
            while not any(
                each["worker_id"] == "decode-1" and int(each["load"]["num_running"]) > 0 for each in await workers(url)
            ):
                await asyncio.sleep(0.01)
        os.kill(await pid_of("decode-1", url), signal.SIGKILL)
        for prompt, tokens in zip(prompts, await asyncio.gather(*asking), strict=True):
            assert tokens == oracle.greedy(prompt, 150, tokens)
