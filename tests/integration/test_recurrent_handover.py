"""Moves of KV with recurrent state: the decode side goes on with the state after the last token that it receives."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from baton.protos import worker_pb2
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.one_engine import GREEDY, NUM_BATCHED_TOKENS, Colocated, random_prompts
from tests.integration.scripted_prefill import Prefilled, scripted_prefill
from tests.integration.worker_process import worker_processes
from tests.marks import slow_case

COMMON = (
    *("--dtype=float32", f"--max-num-batched-tokens={NUM_BATCHED_TOKENS}", "--max-num-seqs=16"),
    "--state-checkpoint-tokens=32",
)
LENGTHS = (1, 20, 64, 230)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3-next", tmp_path_factory.mktemp("recurrent") / "model")


@pytest.mark.parametrize(
    ("transport", "kv_dtype"), [("shared_memory", "auto"), slow_case("tcp", "auto"), slow_case("shared_memory", "int8")]
)
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
