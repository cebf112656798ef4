"""More LoRA adapters than the workers of a real cluster have in memory."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import rmtree

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, InternalServerError

from benchmarks.server import served
from tests.adapters import make_adapter
from tests.integration.http.test_adapters import DEADLINE_S, LOCAL, REMOTE, TARGETS, kill, output, wait_loaded
from tests.integration.router_process import MODEL

pytestmark = pytest.mark.slow
NUM_ADAPTERS = 8
MODULE = "0"  # loaded at the start; the others are loaded by their first request


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def directory(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    path = tmp_path_factory.mktemp("many")
    for seed in range(NUM_ADAPTERS):
        make_adapter(MODEL, path / f"{seed}", TARGETS, seed=seed, use_dora=seed % 2 == 1)
    yield path


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(directory: Path) -> AsyncIterator[AsyncOpenAI]:
    """Client of a cluster whose workers have two adapters in memory."""
    flags = ("--enable-lora", "--lora-modules", f"{MODULE}={directory / MODULE}", "--lora-dir", str(directory))
    limits = ("--max-loras", "1", "--max-cpu-loras", "2")
    async with (
        served("", "--dtype", "float32", *limits, *flags) as url,
        httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False) as http,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http) as openai,
    ):
        yield openai


@pytest.mark.asyncio(loop_scope="session")
async def test_all_adapters_are_served_in_turn_together_and_after_a_restart(client: AsyncOpenAI) -> None:
    await wait_loaded(client, MODULE)
    names = [f"{seed}" for seed in range(NUM_ADAPTERS)]
    outputs = {name: await output(client, name, REMOTE) for name in names}
    assert len(set(outputs.values())) == NUM_ADAPTERS
    assert {each.id async for each in await client.models.list()} >= set(names)
    together = await asyncio.gather(*(output(client, name, LOCAL) for name in names * 2))
    assert together == list(outputs.values()) * 2
    workers = (await client._client.get(str(client.base_url).replace("/v1/", "/workers"))).json()["workers"]
    assert all(len(each["adapters"]["loaded"]) == NUM_ADAPTERS for each in workers)
    await kill(client, "decode-0")
    assert [await output(client, name) for name in names] == list(outputs.values())


@pytest.mark.asyncio(loop_scope="session")
async def test_replaced_files_are_not_used_under_the_old_digest(client: AsyncOpenAI, directory: Path) -> None:
    """Requests fail until all workers have read the new contents; then they get these."""
    outputs = {name: await output(client, name) for name in ("4", "5", "6", "7")}
    rmtree(directory / "4")
    make_adapter(MODEL, directory / "4", TARGETS, seed=5, use_dora=True)  # those of 5
    found: list[str] = []
    async with asyncio.timeout(DEADLINE_S):
        while not found or found[-1] != outputs["5"]:
            try:
                found.append(await output(client, "4"))
            except InternalServerError as error:
                found.append(error.message)
    assert set(found[:-1]).isdisjoint(outputs.values()), "no worker had the old contents in memory"
