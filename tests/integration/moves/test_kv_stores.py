"""KV that outlives its worker: fetched from a store, by any worker, with the same tokens."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.kv.block_hash import hash_blocks
from baton.engine.kv.dtype import kv_bytes_per_token
from baton.engine.sampling.params import SamplingParams
from baton.kvtransfer.store.factory import open_store
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.router_process import MODEL, router_process, wait_workers
from tests.integration.worker_process import worker_process, worker_processes
from tests.integration.workers_view import wait_idle
from tests.marks import slow_case
from tests.oracle import Oracle
from tests.redis_server import redis_server
from tests.s3_server import BUCKET, CREDENTIALS, s3_server

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
        async for update in worker.updates():
            [tier] = update.load.tiers
            if tier.saved_blocks >= 10:
                assert (tier.name, tier.capacity_bytes, tier.failures) == ("disk", 32 << 30, 0)
                assert tier.num_blocks == tier.saved_blocks
                break
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
        assert first.token_ids == Oracle(model).greedy(PROMPT, 20, first.token_ids)
        async for update in keeper.updates():
            if update.load.tiers[0].saved_blocks >= 10:
                break
        longer = [*PROMPT, *first.token_ids, 5]
        async with (
            worker_processes(model, tmp_path, ("prefill", *flags), ("decode", *SMALL)) as (prefill, decode),
            decode_client(decode) as second,
        ):
            generation = await second.generate(longer, GREEDY, await prefill.peer())
            assert generation.token_ids == Oracle(model).greedy(longer, 20, generation.token_ids)
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
        assert generation.token_ids == Oracle(model).greedy(PROMPT, 20, generation.token_ids)
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
        assert generation.token_ids == Oracle(model).greedy(PROMPT, 20, generation.token_ids)
        assert not generation.served_by.stored_tokens


@asynccontextmanager
async def shared_store(kind: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Run a server for blocks, and yield the store's URL; `shared`: of a directory that NIXL reads and writes."""
    if kind == "redis":
        async with redis_server(directory) as server:
            yield server.url
        return
    if kind == "shared":
        (directory / "shared").mkdir()
        yield f"nixl-posix://{directory}/shared"
        return
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    (directory / "s3").mkdir()
    with s3_server(directory / "s3") as endpoint:
        yield f"s3://{BUCKET}/kv?endpoint={endpoint}&region=us-east-1"


@pytest.mark.parametrize("kind", ["redis", slow_case("s3"), slow_case("shared")])
async def test_two_prefill_workers_and_a_decode_worker_share_a_store(
    kind: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With encrypted blocks: the second prefill worker fetches what the first and the decode worker have computed."""
    key = tmp_path / "key"
    key.write_text("5a" * 32)
    key.chmod(0o600)
    async with shared_store(kind, tmp_path, monkeypatch) as url:
        flags = (*SMALL, f"--kv-store={url}", f"--kv-store-key-file={key}")
        three = ("prefill", *flags), ("prefill", *flags), ("decode", *flags)
        async with (
            worker_processes(model, tmp_path, *three) as (first, second, decode),
            decode_client(decode) as client,
        ):
            generation = await client.generate(PROMPT, GREEDY, await first.peer())
            assert generation.token_ids == Oracle(model).greedy(PROMPT, 20, generation.token_ids)
            assert not generation.served_by.stored_tokens
            longer = [*PROMPT, *generation.token_ids, 5, 6]
            expected = Oracle(model).greedy(longer, 20)
            store = open_store(url, (await decode.describe()).fingerprint, 1 << 30, key_file=key)
            async with asyncio.timeout(60):
                while store.count(hash_blocks(longer, 16)) < 10:
                    await asyncio.sleep(0.05)
            store.close()
            again = await client.generate(longer, GREEDY, await second.peer())
            assert again.token_ids == expected
            assert dict(again.served_by.stored_tokens) == {kind: 160}
            assert again.served_by.prefill_cached_tokens == 160


async def test_a_router_sends_a_prompt_to_the_store_that_has_it(tmp_path: Path) -> None:
    """Two workers with a disk each, whose pools have room for one prompt. A short one would be computed anywhere."""
    disks = [tmp_path / name for name in ("a", "b")]
    for disk in disks:
        disk.mkdir()
    pool_bytes = 16 * 130 * kv_bytes_per_token(read_model_config(MODEL))
    small = ("--max-num-seqs=2", f"--kv-cache-memory-bytes={pool_bytes}")
    rng = random.Random(4)
    prompts = [[rng.randrange(3, 999) for _ in range(1900)] for _ in range(6)]
    async with (
        worker_processes(MODEL, tmp_path, *(("both", *small, f"--kv-disk={disk}") for disk in disks)) as workers,
        router_process(tmp_path, "--port=0", f"--workers={','.join(each.address for each in workers)}") as router,
        router.client() as client,
    ):
        await wait_workers(client, 2)

        async def served(prompt: list[int]) -> tuple[str, dict[str, str]]:
            body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
            response = await client.post("/v1/completions", json=body)
            assert response.status_code == 200, response.text
            return response.json()["choices"][0]["text"], dict(response.headers)

        async def num_stored() -> int:
            """Return how many blocks the router knows to be in stores."""
            return sum(worker["stored_blocks"] for worker in (await client.get("/workers")).json()["workers"])

        first = []
        async with asyncio.timeout(60):
            for prompt in prompts:
                first.append(await served(prompt))
                while await num_stored() < 118 * len(first):  # the next prompt evicts this one
                    await asyncio.sleep(0.02)
        assert len({headers["x-baton-decode"] for _, headers in first}) == 2
        for prompt, (text, headers) in zip(prompts, first, strict=True):
            await wait_idle(router.url)  # a pool with room for one prompt would seem to be full
            again, later = await served(prompt)
            assert (again, later["x-baton-decode"]) == (text, headers["x-baton-decode"])
            assert int(later["x-baton-cached-tokens"]) == 1888
