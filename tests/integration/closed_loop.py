"""A closed loop: clients that each ask for one completion after the other, of prompts that nobody has cached."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import httpx

TIMEOUT_S = 60.0
HEADERS = ("x-baton-prefill", "x-baton-decode")  # who had a part in the answer
NUMBERS = count()  # of prompts: each begins differently


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadKind:
    """What the clients ask for."""

    num_clients: int
    num_prompt_tokens: int
    num_output_tokens: int
    pause_s: float = 0.0  # of a client, after each answer


class ClosedLoop:
    """Owns what the clients were answered; every answer must be whole."""

    def __init__(self, client: httpx.AsyncClient, kind: LoadKind) -> None:
        self.workers: set[str] = set()  # that had a part in an answer
        self._client = client
        self._kind = kind

    async def ask(self) -> None:
        """One client, until it is cancelled."""
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
        """Returns once all of these have had a part in answers."""
        async with asyncio.timeout(TIMEOUT_S):
            while not self.workers.issuperset(workers):
                await asyncio.sleep(0.1)


@asynccontextmanager
async def closed_loop(url: str, kind: LoadKind) -> AsyncIterator[ClosedLoop]:
    """A load for the time of the block, at whose end the clients leave; no request of it may fail."""
    async with (
        httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False) as client,
        asyncio.TaskGroup() as group,
    ):
        loop = ClosedLoop(client, kind)
        clients = [group.create_task(loop.ask()) for _ in range(kind.num_clients)]
        yield loop
        for each in clients:
            each.cancel()
