"""Pins on real workers: under pressure, after the loss of their holder, and with the tokens of an unpinned prompt."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.kv.dtype import kv_bytes_per_token
from tests.adapters import make_adapter
from tests.integration.router_process import MODEL, router_process, wait_workers
from tests.integration.worker_process import WorkerProcess, worker_processes

PREFIX = [random.Random(3).randrange(3, 999) for _ in range(320)]
NUM_BLOCKS = 100

pytestmark = pytest.mark.slow


def body_of(prompt: list[int], max_tokens: int = 16) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


async def test_a_pinned_prefix_survives_pressure_and_the_loss_of_its_worker(tmp_path: Path) -> None:
    pool_bytes = 16 * NUM_BLOCKS * kv_bytes_per_token(read_model_config(MODEL))
    flags = ("--max-num-seqs=8", f"--kv-cache-memory-bytes={pool_bytes}")
    async with (
        worker_processes(MODEL, tmp_path, ("both", *flags), ("both", *flags)) as workers,
        router_process(tmp_path, "--port=0", f"--workers={','.join(each.address for each in workers)}") as router,
        router.client() as client,
    ):
        await wait_workers(client, 2)
        expected = (await client.post("/v1/completions", json=body_of([*PREFIX, 7]))).json()["choices"][0]["text"]
        made = await client.post("/v1/cache/pins", json={"prompt": PREFIX, "id": "system"})
        assert made.status_code == 200, made.text
        assert made.json()["tokens"] == 320

        async def load() -> None:
            async with router.client() as other:
                rng = random.Random(5)
                for _ in range(6):
                    prompt = [rng.randrange(3, 999) for _ in range(400)]
                    answer = await other.post("/v1/completions", json=body_of(prompt, 100))
                    assert answer.status_code == 200, answer.text

        async def check(holder: str) -> None:
            there = {"x-baton-decode": holder}  # while it is busy, the other one may be cheaper
            answer = await client.post("/v1/completions", json=body_of([*PREFIX, 7]), headers=there)
            assert answer.json()["choices"][0]["text"] == expected
            assert int(answer.headers["x-baton-cached-tokens"]) == 320

        await asyncio.gather(load(), load(), load())
        [holder] = made.json()["workers"]
        await check(holder)
        by_id = {(await each.describe()).worker_id: each for each in workers}
        await _end(by_id.pop(holder))
        async with asyncio.timeout(60):
            while (await client.get("/v1/cache/pins")).json()["data"][0]["workers"] != list(by_id):
                await asyncio.sleep(0.05)
        [(name, survivor)] = by_id.items()
        await check(name)
        async for update in survivor.updates():
            if update.load.num_pins:
                assert update.load.num_pinned_blocks == 20
                break
        largest = await client.post("/v1/completions", json=body_of([9] * 1500, 20))  # 95 of the 99 blocks
        assert largest.status_code == 200, largest.text
        async for update in survivor.updates():
            if update.load.num_dropped_pins == 1:
                break


async def _end(worker: WorkerProcess) -> None:
    worker.child.kill()
    await worker.child.wait()


async def test_a_pin_of_an_adapter_serves_its_requests(tmp_path: Path) -> None:
    """The base model's requests have other KV, and do not find it."""
    path = make_adapter(MODEL, tmp_path / "sql", ["q_proj", "v_proj"])
    async with (
        worker_processes(MODEL, tmp_path, ("both", "--enable-lora")) as (worker,),
        router_process(
            tmp_path, "--port=0", f"--workers={worker.address}", "--enable-lora", f"--lora-modules=sql={path}"
        ) as router,
        router.client() as client,
    ):
        await wait_workers(client, 1)
        made = await client.post("/v1/cache/pins", json={"model": "sql", "prompt": PREFIX, "id": "system"})
        assert made.status_code == 200, made.text
        assert (made.json()["model"], made.json()["tokens"]) == ("sql", 320)
        cached = {}
        for model in ("sql", (await client.get("/v1/models")).json()["data"][0]["id"]):
            answer = await client.post("/v1/completions", json={**body_of([*PREFIX, 7]), "model": model})
            cached[model] = int(answer.headers.get("x-baton-cached-tokens", 0))
        assert list(cached.values()) == [320, 0]
        assert [each["model"] for each in (await client.get("/v1/cache/pins")).json()["data"]] == ["sql"]
