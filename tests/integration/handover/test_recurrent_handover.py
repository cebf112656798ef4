"""Moves of KV with recurrent state: the decode side goes on with the state after the last token that it receives."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx
import pytest

from baton.protos import worker_pb2
from baton.protos.worker_pb2_grpc import WorkerStub
from benchmarks.server import served
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.handover.one_engine import GREEDY, NUM_BATCHED_TOKENS, Colocated, random_prompts
from tests.integration.handover.scripted_prefill import Prefilled, scripted_prefill
from tests.integration.handover.test_architectures import any_tokenizer
from tests.integration.moves.test_stopped_worker import tokens_of
from tests.integration.worker_process import worker_processes
from tests.integration.workers_view import wait_all_ready, workers
from tests.marks import slow_case
from tests.oracle import Oracle

COMMON = (
    *("--dtype=float32", f"--max-num-batched-tokens={NUM_BATCHED_TOKENS}", "--max-num-seqs=16"),
    "--state-checkpoint-tokens=32",
)
LENGTHS = (1, 20, 64, 230)


@pytest.fixture(scope="module", params=["qwen3-next", *map(slow_case, ("nemotron-h", "falcon-h1", "mamba2"))])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp("recurrent") / "model")


@pytest.mark.parametrize(
    ("transport", "kv_dtype"), [("shared_memory", "auto"), ("tcp", "auto"), ("shared_memory", "int8")]
)
@pytest.mark.slow  # `make test` has handovers of such models in the matrix
async def test_tokens_are_those_of_one_engine(model: Path, transport: str, kv_dtype: str, tmp_path: Path) -> None:
    whole = Colocated(model, kv_dtype)
    flags = (*COMMON, f"--transport={transport}", f"--kv-cache-dtype={kv_dtype}")
    workers = worker_processes(model, tmp_path, ("prefill", *flags), ("decode", *flags))
    prompts = random_prompts(1, *LENGTHS)
    follow_ups = [[*prompt, *rest] for prompt, rest in zip(prompts, random_prompts(2, 30, 3, 50, 70), strict=True)]
    async with workers as (prefill, decode), decode_client(decode) as client:
        peer = await prefill.peer()
        for prompt in (*prompts, *follow_ups, *prompts):  # the later ones begin in prefix caches
            generation = await client.generate(prompt, GREEDY, peer)
            assert generation.token_ids == whole.greedy(prompt)
            assert generation.served_by.prefill_worker == peer.worker_id
        turn = [*prompts[-1], *generation.token_ids, *random_prompts(5, 20)[0]]
        generation = await client.generate(turn, GREEDY, peer)
        assert generation.token_ids == whole.greedy(turn)
        assert generation.served_by.decode_cached_tokens == 256  # a checkpoint of the first turn's output
        load = await decode.wait_idle()
        assert load.handover_failures == 0
        await prefill.wait_idle()


async def test_a_prefix_is_pulled_with_its_state(model: Path, tmp_path: Path) -> None:
    prompt, other = random_prompts(3, 155, 60)
    whole = Colocated(model, "auto")
    async with worker_processes(model, tmp_path, ("decode", *COMMON), ("decode", *COMMON)) as (source, puller):
        async with decode_client(source) as client:
            await client.generate(prompt, GREEDY)
        async with decode_client(puller) as client:
            for again, num_pulled in (([*prompt[:100], *other], 96), ([*prompt, *other], 32)):
                pulled = await client.submit(again, GREEDY, prefix_source=await source.peer())
                await pulled.ended.wait()
                assert pulled.token_ids == whole.greedy(again)
                assert pulled.served_by.prefix_pulled_tokens == num_pulled
            shorter = [*prompt[:70], *other]  # its state was not pulled
            assert (await client.generate(shorter, GREEDY)).token_ids == whole.greedy(shorter)


async def test_a_part_of_a_handover_without_the_state_is_not_used(model: Path, tmp_path: Path) -> None:
    [prompt] = random_prompts(4, 230)
    whole = Colocated(model, "auto")

    async def breaks_off(prefilled: Prefilled) -> AsyncIterator[worker_pb2.PrefillEvent]:
        yield prefilled.accepted()
        yield prefilled.blocks(4, list(range(1, 11)))  # KV of 160 tokens; random bytes
        yield prefilled.blocks(14, [11], checksum_error=1)
        await asyncio.Event().wait()

    async with worker_processes(model, tmp_path, ("decode", *COMMON)) as (decode,), decode_client(decode) as client:
        await client.generate(prompt[:70], GREEDY)
        async with scripted_prefill(await decode.describe(), breaks_off) as (peer, _):
            generation = await client.generate(prompt, GREEDY, peer)
        load = await decode.wait_idle()
    assert generation.token_ids == whole.greedy(prompt)
    assert generation.served_by.decode_cached_tokens == 64
    assert generation.served_by.handed_over_tokens == 0
    assert (load.handover_failures, load.checksum_failures) == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "transport"), [("qwen3-next", "shared_memory"), ("qwen3-next", "tcp"), ("nemotron-h", "tcp")]
)
async def test_a_drained_decode_workers_request_migrates_with_its_state(
    architecture: str, transport: str, tmp_path: Path
) -> None:
    model = make_checkpoint(architecture, tmp_path / "model", tokenizer=any_tokenizer(), max_position_embeddings=1024)
    [prompt] = random_prompts(6, 150)
    body = {
        "prompt": prompt,
        "max_tokens": 400,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    flags = ("--prefill=1", "--decode=2", "--dtype=float32", f"--transport={transport}", "--state-checkpoint-tokens=32")
    async with (
        served(str(model), *flags) as url,
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False) as client,
    ):
        await wait_all_ready(url)
        async with client.stream("POST", "/v1/completions", json=body) as response:
            tokens = tokens_of(response)
            seen = [await anext(tokens) for _ in range(40)]
            leaving = response.headers["x-baton-decode"]
            addresses = {worker["worker_id"]: worker["address"] for worker in await workers(url)}
            async with grpc.aio.insecure_channel(addresses[leaving]) as channel:
                await WorkerStub(channel).Drain(worker_pb2.DrainRequest(timeout_s=0.05))
            seen += [token async for token in tokens]
        [staying] = [each for each in await workers(url) if each["role"] == "decode" and each["worker_id"] != leaving]
    assert seen == Oracle(model).greedy(prompt, 400, seen)
    assert int(staying["load"]["handover_bytes"]) > 0  # it pulled the KV and a checkpoint of the state
    assert int(staying["load"]["num_prefilled_tokens"]) < len(prompt)
