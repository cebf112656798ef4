"""The `openai` clients over the resuming transports, with connections to real routers that break repeatedly."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, OpenAI

from baton.client import AsyncResumingTransport, ResumingTransport
from tests.faults.proxy import Proxy
from tests.integration.router_process import MODEL, router_process, wait_workers
from tests.integration.together import together
from tests.integration.worker_process import worker_processes
from tests.marks import slow_except

MESSAGES = [{"role": "user", "content": "Tell me of a cat and a dog."}]
CUT_EVERY = 4  # chunks
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
CHATS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 40},
    "several, unseeded": {"n": 3, "max_tokens": 30, "temperature": 1.2},
    "seeded, with logprobs": {"seed": 3, "logprobs": True, "top_logprobs": 2, "max_tokens": 20},
    "until it ends": {"n": 2, "temperature": 1.0, "max_tokens": 60, "stop": ["the", "\n"]},
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(slots=True)
class Read:
    """The contents that a client has read from a stream."""

    roles: dict[int, int] = field(default_factory=dict)  # how often each completion started
    texts: dict[int, str] = field(default_factory=dict)
    ends: dict[int, list[str]] = field(default_factory=dict)
    logprobs: list[Any] = field(default_factory=list)
    num_tokens: int = -1

    def add(self, chunk: Any) -> None:
        """Add a chunk of a chat completion."""
        if chunk.usage is not None:
            self.num_tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            index = choice.index
            self.roles[index] = self.roles.get(index, 0) + (choice.delta.role is not None)
            self.texts[index] = self.texts.get(index, "") + (choice.delta.content or "")
            self.ends.setdefault(index, []).extend([choice.finish_reason] if choice.finish_reason else [])
            self.logprobs += choice.logprobs.content if choice.logprobs else []


@dataclass(frozen=True)
class Routers:
    """Two routers and the proxies in front of them."""

    urls: list[str]
    proxies: list[Proxy]
    direct_url: str

    async def cut(self) -> None:
        """Break all client connections."""
        for proxy in self.proxies:
            await proxy.cut()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def routers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Routers]:
    directory = tmp_path_factory.mktemp("cluster")
    async with AsyncExitStack() as stack:
        decode = ("decode", "--dtype=float32")
        workers = await stack.enter_async_context(worker_processes(MODEL, directory, decode, decode))
        addresses = ",".join(worker.address for worker in workers)
        making = together(*(router_process(directory, "--port=0", f"--workers={addresses}") for _ in range(2)))
        made = await stack.enter_async_context(making)
        for router in made:
            async with router.client() as client:
                await wait_workers(client, len(workers))
        proxies = [await stack.enter_async_context(Proxy("127.0.0.1", router.port)) for router in made]
        yield Routers([f"http://{proxy.address}" for proxy in proxies], proxies, made[0].url)


@asynccontextmanager
async def openai_client(url: str, transport: httpx.AsyncBaseTransport | None = None) -> AsyncIterator[AsyncOpenAI]:
    http = httpx.AsyncClient(transport=transport, timeout=60, trust_env=False, verify=False)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http) as client:  # type: ignore[arg-type]
        yield client


async def read_chat(client: AsyncOpenAI, name: str, every: Callable[[], Awaitable[None]] | None = None) -> Read:
    """Stream a chat; its request id follows from `name`, so that it is the same request for every client."""
    read, num_chunks = Read(), 0
    headers = {"x-request-id": f"chat-{name.replace(' ', '-')}", "x-baton-resumable": "true"}
    stream = await client.chat.completions.create(
        model=MODEL.name, messages=MESSAGES, extra_headers=headers, **STREAM, **CHATS[name]
    )
    async for chunk in stream:
        read.add(chunk)
        num_chunks += 1
        if every is not None and num_chunks % CUT_EVERY == 0:
            await every()
    return read


@pytest.mark.parametrize("name", slow_except(CHATS, ("greedy", "until it ends")))
async def test_a_stream_with_losses_equals_an_undisturbed_one(routers: Routers, name: str) -> None:
    num_cuts = 0

    async def cut() -> None:
        nonlocal num_cuts
        num_cuts += 1
        await routers.cut()

    async with openai_client(routers.direct_url) as client:
        expected = await read_chat(client, name)
    transport = AsyncResumingTransport(routers=routers.urls)
    async with openai_client(routers.urls[0], transport) as client:
        assert await read_chat(client, name, cut) == expected
    assert num_cuts  # only one if the rest arrived at once afterwards
    assert set(expected.roles.values()) == {1}
    assert all(len(ends) == 1 for ends in expected.ends.values())


@pytest.mark.slow
async def test_a_client_without_an_event_loop_resumes_too(routers: Routers) -> None:
    loop = asyncio.get_running_loop()

    def ask(cuts: bool) -> str:
        transport = ResumingTransport(routers=routers.urls) if cuts else None
        http = httpx.Client(transport=transport, timeout=60, trust_env=False, verify=False)
        url = routers.urls[1] if cuts else routers.direct_url
        text = ""
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http) as client:  # type: ignore[arg-type]
            stream = client.completions.create(
                model=MODEL.name, prompt="Once upon a time", max_tokens=40, temperature=0, stream=True
            )
            for number, chunk in enumerate(stream):
                text += chunk.choices[0].text
                if cuts and number % CUT_EVERY == 0:
                    asyncio.run_coroutine_threadsafe(routers.cut(), loop).result()
        return text

    assert await asyncio.to_thread(ask, True) == await asyncio.to_thread(ask, False)


@pytest.mark.slow
async def test_a_whole_response_survives_losses(routers: Routers) -> None:
    async def ask(client: AsyncOpenAI) -> str:
        response = await client.completions.create(
            model=MODEL.name, prompt="Once upon a time", max_tokens=300, temperature=0, extra_body={"ignore_eos": True}
        )
        return response.choices[0].text

    async with openai_client(routers.direct_url) as client, httpx.AsyncClient(trust_env=False, verify=False) as http:
        expected = await ask(client)
        transport = AsyncResumingTransport(routers=routers.urls)
        async with openai_client(routers.urls[0], transport) as resuming:
            asking = asyncio.create_task(ask(resuming))
            num_cuts = 0
            while not asking.done() and num_cuts < 2:
                workers = (await http.get(f"{routers.direct_url}/workers")).json()["workers"]
                if any(worker["load"]["num_running"] for worker in workers):
                    await routers.cut()
                    num_cuts += 1
                await asyncio.sleep(0.05)
            assert await asking == expected
    assert num_cuts
