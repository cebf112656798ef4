"""`baton cache` on real servers: an export makes another cluster warm, and caches are cleared."""

import asyncio
import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from baton.__main__ import main
from tests.integration.router_process import MODEL, router_process, wait_workers
from tests.integration.worker_process import worker_process

PROMPT = [random.Random(3).randrange(3, 999) for _ in range(600)]
BODY = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": True}

pytestmark = pytest.mark.slow


async def cache(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, ["cache", *arguments])


async def test_a_new_cluster_starts_warm_from_an_export(tmp_path: Path) -> None:
    first, second, export = (tmp_path / name for name in ("first", "second", "export"))
    first.mkdir()
    second.mkdir()
    async with (
        worker_process("both", MODEL, tmp_path, f"--kv-disk={first}") as worker,
        router_process(tmp_path, "--port=0", f"--workers={worker.address}") as router,
        router.client() as client,
    ):
        await wait_workers(client, 1)
        text = (await client.post("/v1/completions", json=BODY)).json()["choices"][0]["text"]
        async with asyncio.timeout(60):
            while len(list(first.glob("baton-kv/*/??/*"))) < 38:
                await asyncio.sleep(0.02)
        made = await cache("export", str(export), "--from", str(first))
        assert made.exit_code == 0, made.output
        assert ": 38 blocks, " in made.output
        shown = await cache("stats", "--url", router.url)
        assert shown.exit_code == 0, shown.output
        assert "kv_cache" in shown.output
        assert "disk" in shown.output
    flags = (f"--kv-disk={second}", "--kv-disk-bytes=1GiB")
    async with (
        worker_process("both", MODEL, tmp_path, *flags) as worker,
        router_process(tmp_path, "--port=0", f"--workers={worker.address}") as router,
        router.client() as client,
    ):
        await wait_workers(client, 1)
        added = await cache("import", str(export), "--to", str(second), "--url", router.url, "--max-bytes", "1GiB")
        assert added.exit_code == 0, added.output
        assert "38 of 38 blocks were added" in added.output
        answer = await client.post("/v1/completions", json=BODY)
        assert answer.json()["choices"][0]["text"] == text
        assert answer.headers["x-baton-stored-tokens"] == "disk=592"
        cleared = await cache("clear", "--url", router.url)
        assert cleared.exit_code == 0, cleared.output
        assert ": 38 blocks forgotten" in cleared.output
        assert (await client.post("/v1/completions", json=BODY)).headers["x-baton-stored-tokens"] == "disk=592"
        for tier in ("disk", "kv_cache"):
            assert ": 38 blocks forgotten" in (await cache("clear", "--url", router.url, "--tier", tier)).output
        refused = await cache("clear", "--url", router.url, "--tier", "tape")
        assert (refused.exit_code, "there is no tier 'tape'" in refused.output) == (1, True)
        again = await client.post("/v1/completions", json=BODY)
        assert again.json()["choices"][0]["text"] == text
        assert "x-baton-stored-tokens" not in again.headers
    other = ("--kv-cache-dtype=int8",)
    async with (
        worker_process("both", MODEL, tmp_path, *other) as worker,
        router_process(tmp_path, "--port=0", f"--workers={worker.address}") as router,
        router.client() as client,
    ):
        await wait_workers(client, 1)
        [ours] = [each["fingerprint"] for each in (await client.get("/workers")).json()["workers"]]
        [theirs] = [each.name for each in (export / "baton-kv").iterdir() if each.name[0] != "."]
        refused = await cache("import", str(export), "--to", str(second), "--url", router.url)
        assert refused.exit_code == 1
        assert f"the export has KV of {theirs}, but the workers at {router.url} have {ours}" in refused.output
