"""KV that outlives its worker: fetched from a store, by any worker, with the same tokens."""

import asyncio
import random
from pathlib import Path

import pytest

from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.oracle import Oracle
from tests.integration.worker_process import worker_process, worker_processes
from tests.marks import slow_case

PROMPT = [random.Random(3).randrange(3, VOCAB_SIZE) for _ in range(150)]
SMALL = ("--max-num-batched-tokens=64", "--max-num-seqs=8")
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
FEATURES = {
    "greedy": GREEDY,
    "seeded": SamplingParams(temperature=1, seed=7, max_tokens=20, ignore_eos=True),
    "penalties": SamplingParams(temperature=0, max_tokens=20, repetition_penalty=1.3, presence_penalty=0.5),
    "logprobs": SamplingParams(temperature=0, max_tokens=20, logprobs=3),
    "stop": SamplingParams(temperature=0.7, seed=5, max_tokens=20, stop_token_ids=frozenset(range(3, 40))),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("stores") / "model")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    directory = tmp_path / "kv"
    directory.mkdir()
    return directory


@pytest.mark.parametrize("kv_dtype", ["auto", slow_case("int8")])
async def test_a_chat_goes_on_after_all_workers_have_restarted(
    kv_dtype: str, model: Path, disk: Path, tmp_path: Path
) -> None:
    """From a disk: prompt and output of the former worker are not computed again, whatever the request asks for."""
    plain = (*SMALL, f"--kv-cache-dtype={kv_dtype}")
    flags = (*plain, f"--kv-disk={disk}")
    async with worker_process("decode", model, tmp_path, *flags) as worker, decode_client(worker) as client:
        first = await client.generate(PROMPT, GREEDY)
        expected = {name: await client.generate(PROMPT, sampling) for name, sampling in FEATURES.items()}
    later = [*PROMPT, *first.token_ids, 5]
    async with worker_process("decode", model, tmp_path, *flags) as worker, decode_client(worker) as client:
        generation = await client.generate(later, GREEDY)
        assert dict(generation.served_by.stored_tokens) == {"disk": 160}  # the last token's KV was never computed
        assert generation.served_by.decode_cached_tokens == 0
    async with worker_process("decode", model, tmp_path, *flags) as worker, decode_client(worker) as client:
        for name, sampling in FEATURES.items():
            again = await client.generate(PROMPT, sampling)
            assert again.token_ids == expected[name].token_ids, name
            assert [each.chosen for each in again.logprobs] == [each.chosen for each in expected[name].logprobs]
            assert again.finish_reason == expected[name].finish_reason
    async with (
        worker_process("decode", model, tmp_path, *plain) as worker,
        decode_client(worker) as client,
    ):
        assert (await client.generate(later, GREEDY)).token_ids == generation.token_ids


async def test_a_prefill_worker_fetches_and_hands_over(model: Path, tmp_path: Path) -> None:
    flags = (*SMALL, "--kv-host-memory-bytes=16MiB")
    async with worker_process("decode", model, tmp_path, *flags) as keeper, decode_client(keeper) as client:
        first = await client.generate(PROMPT, GREEDY)
        assert first.token_ids == Oracle(model).greedy(PROMPT, 20)
        longer = [*PROMPT, *first.token_ids, 5]
        async with (
            worker_processes(model, tmp_path, ("prefill", *flags), ("decode", *SMALL)) as (prefill, decode),
            decode_client(decode) as second,
        ):
            generation = await second.generate(longer, GREEDY, await prefill.peer())
            assert generation.token_ids == Oracle(model).greedy(longer, 20)
            assert dict(generation.served_by.stored_tokens) == {"host": 160}
            assert generation.served_by.prefill_cached_tokens == 160
            assert generation.served_by.handed_over_tokens == len(longer)
            await asyncio.gather(prefill.wait_idle(), decode.wait_idle())


async def test_a_killed_worker_leaves_its_blocks(model: Path, disk: Path, tmp_path: Path) -> None:
    """Another worker finds what was saved before the kill, and computes the rest."""
    flags = (*SMALL, f"--kv-disk={disk}")
    async with worker_process("decode", model, tmp_path, *flags) as worker, decode_client(worker) as client:
        await client.generate(PROMPT, GREEDY)
        async with asyncio.timeout(30):
            while len(list(disk.glob("baton-kv/*/??/*"))) < 9:
                await asyncio.sleep(0.02)
        worker.child.kill()
        await worker.child.wait()
    async with worker_process("decode", model, tmp_path, *flags) as worker, decode_client(worker) as client:
        generation = await client.generate(PROMPT, GREEDY)
        assert generation.token_ids == Oracle(model).greedy(PROMPT, 20)
        assert dict(generation.served_by.stored_tokens) == {"disk": 144}


async def test_an_abort_during_lookup_or_fetch_leaves_nothing(model: Path, disk: Path, tmp_path: Path) -> None:
    flags = (*SMALL, f"--kv-disk={disk}")
    async with worker_process("decode", model, tmp_path, *flags) as worker, decode_client(worker) as client:
        await client.generate(PROMPT, GREEDY)
    async with worker_process("decode", model, tmp_path, *flags) as worker, decode_client(worker) as client:
        for delay_s in (0, 0.0005, 0.001, 0.002, 0.004):
            generation = await client.submit(PROMPT, GREEDY)
            await asyncio.sleep(delay_s)
            await client.abort(generation)
        await worker.wait_idle()
        assert (await client.generate(PROMPT, GREEDY)).token_ids == Oracle(model).greedy(PROMPT, 20)


async def test_blocks_with_other_bytes_are_computed(model: Path, disk: Path, tmp_path: Path) -> None:
    flags = (*SMALL, f"--kv-disk={disk}")
    async with worker_process("decode", model, tmp_path, *flags) as worker, decode_client(worker) as client:
        await client.generate(PROMPT, GREEDY)
    for file in disk.glob("baton-kv/*/??/*"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    async with worker_process("decode", model, tmp_path, *flags) as worker, decode_client(worker) as client:
        generation = await client.generate(PROMPT, GREEDY)
        assert generation.token_ids == Oracle(model).greedy(PROMPT, 20)
        assert not generation.served_by.stored_tokens
