"""Handover of int8 and int4 KV with its scales, only between workers that use the same."""

from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.handover.one_engine import GREEDY, NUM_BATCHED_TOKENS, Colocated, random_prompts
from tests.integration.worker_process import worker_processes
from tests.marks import slow_case

COMMON = ("--dtype=float32", f"--max-num-batched-tokens={NUM_BATCHED_TOKENS}", "--max-num-seqs=16")
INT8, INT4 = ((*COMMON, f"--kv-cache-dtype={each}") for each in ("int8", "int4"))


@pytest.mark.parametrize(
    ("architecture", "kv_dtype", "transport", "num_prefill", "num_decode"),
    [
        slow_case("llama3", "int8", "tcp", 2, 1),
        slow_case("llama3", "int8", "shared_memory", 1, 2),
        slow_case("llama3", "int4", "tcp", 2, 1),
        slow_case("llama3", "int4", "nixl", 1, 2),
    ],
)
async def test_tokens_are_those_of_one_engine(
    architecture: str, kv_dtype: str, transport: str, num_prefill: int, num_decode: int, tmp_path: Path
) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    colocated = Colocated(model, kv_dtype)
    shards = f"--kv-shards={max(num_prefill, num_decode)}"
    flags = (f"--transport={transport}", shards, *(INT4 if kv_dtype == "int4" else INT8))
    shapes = [("prefill", f"--tensor-parallel={num_prefill}"), ("decode", f"--tensor-parallel={num_decode}")]
    workers = worker_processes(model, tmp_path, *((*shape, *flags) for shape in shapes))
    prompts = random_prompts(1, 1, 40, 100, 190)
    async with workers as (prefill, decode), decode_client(decode) as client:
        peer = await prefill.peer()
        for prompt in prompts * 2:  # then from prefix caches
            generation = await client.generate(prompt, GREEDY, peer)
            assert generation.token_ids == colocated.greedy(prompt)
            assert generation.served_by.prefill_worker == peer.worker_id
        load = await decode.wait_idle()
        assert load.handover_failures == 0
        num_blocks = sum(-(-len(prompt) // 16) for prompt in prompts)
        assert load.handover_bytes >= num_blocks * colocated.bytes_per_block
        await prefill.wait_idle()


@pytest.mark.parametrize("other", [COMMON, INT4])
async def test_workers_with_different_kv_types_do_not_hand_over(other: tuple[str, ...], tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    [prompt] = random_prompts(3, 100)
    async with (
        worker_processes(model, tmp_path, ("prefill", *other), ("decode", *INT8)) as (prefill, decode),
        decode_client(decode) as client,
    ):
        described = [await each.describe() for each in (prefill, decode)]
        assert described[0].fingerprint != described[1].fingerprint  # routers pair only equal ones
        generation = await client.generate(prompt, GREEDY, await prefill.peer())
        load = await decode.wait_idle()
    assert generation.token_ids == Colocated(model).greedy(prompt)
    assert generation.served_by.prefill_worker == generation.served_by.decode_worker
    assert (load.handovers, load.handover_failures, load.handover_bytes) == (0, 1, 0)
