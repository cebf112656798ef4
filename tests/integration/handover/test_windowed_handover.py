"""Moves of KV of models with windows and chunks: only the blocks that later tokens attend to are transferred."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from baton.protos import worker_pb2
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.handover.one_engine import GREEDY, NUM_BATCHED_TOKENS, Colocated, random_prompts
from tests.integration.handover.scripted_prefill import Prefilled, scripted_prefill
from tests.integration.worker_process import worker_processes
from tests.marks import slow_case

COMMON = ("--hybrid-kv-cache", "--dtype=float32", f"--max-num-batched-tokens={NUM_BATCHED_TOKENS}", "--max-num-seqs=16")
LENGTHS = (1, 20, 100, 230)


@pytest.mark.slow  # `make test` has handovers of such models in the matrix
@pytest.mark.parametrize(
    ("architecture", "transport", "kv_dtype", "num_prefill", "num_decode"),
    [
        ("gemma3", "shared_memory", "auto", 1, 1),
        ("gpt-oss", "tcp", "auto", 1, 1),
        ("llama4", "tcp", "int8", 1, 1),
        ("mistral-window", "shared_memory", "auto", 1, 1),
        ("gemma2", "tcp", "auto", 2, 1),
        ("gemma3", "shared_memory", "int8", 1, 2),
        ("gpt-oss", "shared_memory", "auto", 2, 2),
    ],
)
async def test_tokens_are_those_of_whole_blocks(
    architecture: str, transport: str, kv_dtype: str, num_prefill: int, num_decode: int, tmp_path: Path
) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    whole = Colocated(model, kv_dtype)
    flags = (
        *(*COMMON, f"--transport={transport}", f"--kv-cache-dtype={kv_dtype}"),
        f"--kv-shards={max(num_prefill, num_decode)}",
    )
    shapes = [("prefill", f"--tensor-parallel={num_prefill}"), ("decode", f"--tensor-parallel={num_decode}")]
    workers = worker_processes(model, tmp_path, *((*shape, *flags) for shape in shapes))
    prompts = random_prompts(1, *LENGTHS)
    follow_ups = [[*prompt, *rest] for prompt, rest in zip(prompts, random_prompts(2, 30, 3, 50, 70), strict=True)]
    async with workers as (prefill, decode), decode_client(decode) as client:
        peer = await prefill.peer()
        for prompt in (*prompts, *follow_ups, *prompts):  # the later ones begin in prefix caches
            generation = await client.generate(prompt, GREEDY, peer)
            assert generation.token_ids == whole.greedy(prompt)
            assert generation.served_by.prefill_worker == peer.worker_id
        load = await decode.wait_idle()
        assert load.handover_failures == 0
        assert (
            0 < load.handover_bytes < sum(-(-len(each) // 16) for each in prompts + follow_ups) * whole.bytes_per_block
        )
        await prefill.wait_idle()


@pytest.mark.parametrize("architecture", ["gpt-oss", slow_case("llama4"), slow_case("mistral-window")])
async def test_a_prefix_is_pulled_with_its_windows(architecture: str, tmp_path: Path) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    prompt, other = random_prompts(3, 155, 60)
    whole = Colocated(model, "auto")
    # Without a layer that attends to the whole context, a prefix whose beginning was not pulled is not found again.
    num_second = 144 if architecture == "mistral-window" else 48
    async with worker_processes(model, tmp_path, ("decode", *COMMON), ("decode", *COMMON)) as (source, puller):
        async with decode_client(source) as client:
            await client.generate(prompt, GREEDY)
        async with decode_client(puller) as client:
            for again, num_pulled in (([*prompt[:100], *other], 96), ([*prompt, *other], num_second)):
                pulled = await client.submit(again, GREEDY, prefix_source=await source.peer())
                await pulled.ended.wait()
                assert pulled.token_ids == whole.greedy(again)
                assert pulled.served_by.prefix_pulled_tokens == num_pulled
            shorter = [*prompt[:70], *other]  # its windows were not pulled
            assert (await client.generate(shorter, GREEDY)).token_ids == whole.greedy(shorter)


async def test_a_part_of_a_handover_without_its_windows_is_not_used(tmp_path: Path) -> None:
    model = make_checkpoint("gpt-oss", tmp_path / "model")
    [prompt] = random_prompts(4, 230)
    whole = Colocated(model, "auto")

    async def breaks_off(prefilled: Prefilled) -> AsyncIterator[worker_pb2.PrefillEvent]:
        yield prefilled.accepted()
        yield prefilled.blocks(4, list(range(1, 11)))  # of 18 blocks; random bytes
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
    assert load.handover_bytes > 0
