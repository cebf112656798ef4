"""Repeated completions of a few prompts at one or more routers: none may fail, and repeats must be equal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

NUM_PROMPTS, PROMPT_TOKENS, MAX_TOKENS = 6, 200, 12


def prompt(index: int) -> list[int]:
    """Return the token ids of one of the prompts."""
    return [300 + (index * 331 + position) % 3000 for position in range(PROMPT_TOKENS)]


async def complete(client: httpx.AsyncClient, index: int, max_tokens: int = MAX_TOKENS) -> httpx.Response:
    """Request a completion of a prompt, which must succeed."""
    body: dict[str, Any] = {"prompt": prompt(index), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == max_tokens
    return response


class CompletionLoad:
    """Clients that each request one completion after another; the first failure ends the load and is raised."""

    def __init__(self, clients: list[httpx.AsyncClient]) -> None:
        self.counts = [0] * len(clients)  # completions per client
        self._texts: dict[int, str] = {}
        self._stopping = asyncio.Event()
        self._tasks = [asyncio.create_task(self._ask(number, client)) for number, client in enumerate(clients)]

    async def more(self, count: int) -> None:
        """Wait until every client has `count` more responses; raise the first failure."""
        wanted = [served + count for served in self.counts]
        async with asyncio.timeout(60):
            while any(served < least for served, least in zip(self.counts, wanted, strict=True)):
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Stop after the requests in flight; raise the first failure."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    async def cancel(self) -> None:
        """Cancel the load."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, number: int, client: httpx.AsyncClient) -> None:
        while not self._stopping.is_set():
            index = (number + self.counts[number]) % NUM_PROMPTS
            text = (await complete(client, index)).json()["choices"][0]["text"]
            assert self._texts.setdefault(index, text) == text
            self.counts[number] += 1


@asynccontextmanager
async def completion_load(*clients: httpx.AsyncClient) -> AsyncIterator[CompletionLoad]:
    """Run a load during the block; no request may fail."""
    load = CompletionLoad(list(clients))
    try:
        yield load
        await load.stop()
    finally:
        await load.cancel()
