"""Closed-loop load: clients that each request one completion after another, with uncached prompts."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx

TIMEOUT_S = 60.0
HEADERS = ("x-baton-prefill", "x-baton-decode")  # the workers that served a response
NUMBERS = count()  # numbers of prompts; each prompt has a different prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadKind:
    """The requests of the clients."""

    num_clients: int
    num_prompt_tokens: int
    num_output_tokens: int
    pause_s: float = 0.0  # per client, after each response


class ClosedLoop:
    """A running load; every response must be complete."""

    def __init__(self, client: httpx.AsyncClient, kind: LoadKind) -> None:
        self.workers: set[str] = set()  # that served a response
        self._client = client
        self._kind = kind

    async def ask(self) -> None:
        """Run one client until it is cancelled."""
        while True:
            await self._complete(next(NUMBERS))
            await asyncio.sleep(self._kind.pause_s)

    async def _complete(self, number: int) -> None:
        kind = self._kind
        prompt = [300 + (number * 7919 + place) % 3000 for place in range(kind.num_prompt_tokens)]
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": kind.num_output_tokens, "temperature": 0}
        answer = await self._client.post("/v1/completions", json={**body, "ignore_eos": True})
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == kind.num_output_tokens, answer.text
        self.workers |= {
            answer.headers[name] for name in ("x-baton-prefill", "x-baton-decode") if name in answer.headers
        }

    async def served_by(self, workers: Collection[str]) -> None:
        """Wait until each of these workers has served a response."""
        async with asyncio.timeout(TIMEOUT_S):
            while not self.workers.issuperset(workers):
                await asyncio.sleep(0.1)


@asynccontextmanager
async def closed_loop(url: str, kind: LoadKind) -> AsyncIterator[ClosedLoop]:
    """Run a load during the block, then cancel the clients; no request may fail."""
    async with (
        httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False, verify=False) as client,
        asyncio.TaskGroup() as group,
    ):
        loop = ClosedLoop(client, kind)
        clients = [group.create_task(loop.ask()) for _ in range(kind.num_clients)]
        yield loop
        for each in clients:
            each.cancel()
