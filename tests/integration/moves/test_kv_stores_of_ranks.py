"""Stored KV of models with windows or recurrent layers, and of several ranks: the same tokens after a restart."""

import asyncio
import random
from pathlib import Path

import pytest

from baton.engine.sampling.params import SamplingParams
from baton.protos import worker_pb2, worker_pb2_grpc
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.worker_process import worker_process, worker_processes
from tests.oracle import Oracle
from tests.redis_server import redis_server

pytestmark = pytest.mark.slow

PROMPT = [random.Random(3).randrange(3, VOCAB_SIZE) for _ in range(150)]
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
SMALL = ("--max-num-batched-tokens=64", "--max-num-seqs=8", "--dtype=float32", "--kv-shards=2")
OPTIONS = {
    "qwen3": (),
    "gemma3": ("--hybrid-kv-cache",),
    "qwen3-next": ("--state-checkpoint-tokens=32",),
    "nemotron-h": ("--state-checkpoint-tokens=32",),
    "mamba2": ("--state-checkpoint-tokens=32",),
    "deepseek-v3": (),
}


@pytest.mark.parametrize(
    ("architecture", "before", "after"),
    [
        ("qwen3", 2, 2),
        ("qwen3", 2, 1),
        ("qwen3", 1, 2),
        ("gemma3", 1, 1),
        ("gemma3", 2, 1),
        ("qwen3-next", 1, 1),
        ("qwen3-next", 2, 2),
        ("nemotron-h", 1, 2),
        ("mamba2", 1, 1),
        ("deepseek-v3", 2, 1),  # blocks are not divided: each rank has all of them
    ],
)
async def test_a_chat_goes_on_after_a_restart_with_other_ranks(
    architecture: str, before: int, after: int, tmp_path: Path
) -> None:
    model, disk = make_checkpoint(architecture, tmp_path / "model"), tmp_path / "kv"
    disk.mkdir()
    shards = () if architecture == "deepseek-v3" else SMALL[3:]
    flags = (*SMALL[:3], *shards, *OPTIONS[architecture], f"--kv-disk={disk}")
    first = (*flags, f"--tensor-parallel={before}")
    async with worker_process("decode", model, tmp_path, *first) as worker, decode_client(worker) as client:
        generation = await client.generate(PROMPT, GREEDY)
        assert generation.token_ids == Oracle(model).greedy(PROMPT, 20, generation.token_ids)
    later = [*PROMPT, *generation.token_ids, 5]
    expected = Oracle(model).greedy(later, 20)
    second = (*flags, f"--tensor-parallel={after}")
    async with worker_process("decode", model, tmp_path, *second) as worker, decode_client(worker) as client:
        for num_cached in (0, 160):
            again = await client.generate(later, GREEDY)
            assert again.token_ids == expected
            assert dict(again.served_by.stored_tokens) == ({} if num_cached else {"disk": 160})
            assert again.served_by.decode_cached_tokens == num_cached
        await worker.wait_idle()


async def test_the_stores_of_all_ranks_are_cleared(tmp_path: Path) -> None:
    model, disk = make_checkpoint("qwen3", tmp_path / "model"), tmp_path / "kv"
    disk.mkdir()
    flags = (*SMALL, "--tensor-parallel=2", f"--kv-disk={disk}")
    async with worker_process("decode", model, tmp_path, *flags) as worker, decode_client(worker) as client:
        await client.generate(PROMPT, GREEDY)
        async with asyncio.timeout(60):
            while len(list(disk.glob("baton-kv/*/??/*"))) < 20:  # 10 blocks of two shards
                await asyncio.sleep(0.05)
        stub: worker_pb2_grpc.KVCacheAsyncStub = worker_pb2_grpc.KVCacheStub(worker.channel)
        assert (await stub.Clear(worker_pb2.ClearRequest(tier="disk"))).num_blocks == 10
        assert list(disk.glob("baton-kv/*/??/*")) == []


async def test_two_ranks_prefill_and_hand_over_what_a_server_has(tmp_path: Path) -> None:
    """Fetched by a prefill worker of two ranks, and handed over to a decode worker of one."""
    model = make_checkpoint("gemma3", tmp_path / "model")
    async with redis_server(tmp_path) as server:
        flags = (*SMALL, "--hybrid-kv-cache", f"--kv-store={server.url}")
        async with worker_process("decode", model, tmp_path, *flags) as worker, decode_client(worker) as client:
            await client.generate(PROMPT, GREEDY)
        roles = (("prefill", *flags, "--tensor-parallel=2"), ("decode", *SMALL, "--hybrid-kv-cache"))
        async with worker_processes(model, tmp_path, *roles) as (prefill, decode), decode_client(decode) as client:
            generation = await client.generate(PROMPT, GREEDY, await prefill.peer())
            assert generation.token_ids == Oracle(model).greedy(PROMPT, 20, generation.token_ids)
            assert dict(generation.served_by.stored_tokens) == {"redis": 144}
            await asyncio.gather(prefill.wait_idle(), decode.wait_idle())
