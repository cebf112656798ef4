"""LoRA adapters of a real cluster: outputs, handover, unloading in mid-stream, restarts of its processes."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, NotFoundError

from benchmarks.server import served
from tests.adapters import make_adapter
from tests.integration.router_process import MODEL

pytestmark = pytest.mark.slow
BASE = "baton-bundled"
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
PROMPT = "def add(a, b):\n    " + "# the sum of two numbers, as in school\n    " * 12
INVOCATION = (311, 312, 313)
LOCAL, REMOTE = {"x-baton-plan": "local"}, {"x-baton-plan": "remote"}
DEADLINE_S = 120.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def directory(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """Adapters of the bundled model: a, b, an activated one, and one of a large rank."""
    path = tmp_path_factory.mktemp("adapters")
    make_adapter(MODEL, path / "a", TARGETS, seed=1)
    make_adapter(MODEL, path / "b", TARGETS, seed=2)
    make_adapter(MODEL, path / "activated", TARGETS, seed=3, alora_invocation_tokens=list(INVOCATION))
    make_adapter(MODEL, path / "large", ("q_proj",), rank=32)
    yield path


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(directory: Path) -> AsyncIterator[AsyncOpenAI]:
    """Client of a cluster with the adapter a; b and others are found in the directory."""
    flags = ("--enable-lora", "--lora-modules", f"a={directory / 'a'}", "--lora-dir", str(directory))
    async with (
        served("", "--dtype", "float32", "--max-loras", "2", *flags) as url,
        httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False) as http,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http) as openai,
    ):
        yield openai


async def output(client: AsyncOpenAI, model: str, headers: dict[str, str] | None = None, num_tokens: int = 24) -> str:
    """Return the greedy output of the prompt."""
    completion = await client.completions.create(
        model=model, prompt=PROMPT, temperature=0, max_tokens=num_tokens, extra_headers=headers,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    assert completion.model == model
    return completion.choices[0].text


async def post(client: AsyncOpenAI, path: str, **body: object) -> httpx.Response:
    return await client._client.post(f"{client.base_url}{path}", json=body)


async def wait_loaded(client: AsyncOpenAI, name: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while name not in [model.id async for model in await client.models.list()]:
            await asyncio.sleep(0.05)


async def kill(client: AsyncOpenAI, name: str) -> None:
    """Kill a process of the cluster, and wait until another one serves in its place."""
    url = str(client.base_url).replace("/v1/", "/workers")
    [process] = [each for each in (await client._client.get(url)).json()["processes"] if each["name"] == name]
    os.kill(process["pid"], signal.SIGKILL)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                state = (await client._client.get(url)).json()
                now = next(each for each in state["processes"] if each["name"] == name)
                are_ready = all(worker["state"] == "ready" for worker in state["workers"])
                if now["pid"] != process["pid"] and now["state"] == "ready" and are_ready:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


@pytest.mark.asyncio(loop_scope="session")
async def test_each_name_has_its_own_output_with_and_without_handover(client: AsyncOpenAI) -> None:
    await wait_loaded(client, "a")
    outputs = {}
    for model in (BASE, "a", "b"):
        outputs[model] = await output(client, model, REMOTE)
        assert await output(client, model, LOCAL) == outputs[model]
    assert len(set(outputs.values())) == 3
    together = await asyncio.gather(*(output(client, model) for model in outputs))
    assert together == list(outputs.values())


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("plan", [LOCAL, REMOTE], ids=["local", "remote"])
async def test_an_activated_adapter_and_the_model_share_the_prefix(client: AsyncOpenAI, plan: dict[str, str]) -> None:
    shift = 0 if plan is LOCAL else 1000
    for first, second, start in ((BASE, "activated", 400 + shift), ("activated", BASE, 600 + shift)):
        document = [*range(start, start + 100)]
        cached = {}
        for model in (first, second):
            completion = await client.completions.create(
                model=model, prompt=[*document, *INVOCATION, start], max_tokens=4, extra_headers=plan
            )
            assert completion.usage is not None
            assert completion.usage.prompt_tokens_details is not None
            cached[model] = completion.usage.prompt_tokens_details.cached_tokens
        assert cached == {first: 0, second: 96}, "blocks in front of the invocation"


@pytest.mark.asyncio(loop_scope="session")
async def test_an_adapter_that_no_worker_takes_is_refused_with_the_reason(client: AsyncOpenAI) -> None:
    response = await post(client, "load_lora_adapter", lora_name="large", lora_path="large")
    assert response.status_code == 400
    assert "cannot load the adapter large" in response.json()["error"]["message"]
    assert "max_lora_rank" in response.json()["error"]["message"]


@pytest.mark.asyncio(loop_scope="session")
async def test_a_stream_ends_as_usual_though_its_adapter_is_unloaded(client: AsyncOpenAI) -> None:
    loaded = await post(client, "load_lora_adapter", lora_name="c", lora_path="b")
    assert loaded.status_code == 200, loaded.text
    expected = await output(client, "c", num_tokens=64)
    stream = await client.completions.create(
        model="c", prompt=PROMPT, temperature=0, max_tokens=64, stream=True, extra_body={"ignore_eos": True}
    )
    text, is_unloaded = "", False
    async for chunk in stream:
        text += chunk.choices[0].text if chunk.choices else ""
        if text and not is_unloaded:
            is_unloaded = (await post(client, "unload_lora_adapter", lora_name="c")).status_code == 200
    assert is_unloaded
    assert text == expected
    with pytest.raises(NotFoundError):
        await output(client, "c")


@pytest.mark.asyncio(loop_scope="session")
async def test_adapters_outlive_restarts_of_workers_and_the_router(client: AsyncOpenAI) -> None:
    loaded = await post(client, "load_lora_adapter", lora_name="d", lora_path="b")
    assert loaded.status_code == 200, loaded.text
    expected = await output(client, "d")
    await kill(client, "decode-0")
    assert await output(client, "d") == expected
    await kill(client, "router")
    assert await output(client, "d") == expected
    assert (await post(client, "unload_lora_adapter", lora_name="d")).status_code == 200
