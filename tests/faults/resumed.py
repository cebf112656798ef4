"""Requests of the `openai` client whose streams resume at another router."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from openai import AsyncOpenAI

from baton.client import AsyncResumingTransport
from tests.faults.workload import Answer, Exchange, WrongAnswer

TIMEOUT_S = 60.0


class CountingTransport(httpx.AsyncHTTPTransport):
    """Transport that counts how often a stream is resumed."""

    num_resumes = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request."""
        self.num_resumes += "x-baton-resume" in request.headers
        return await super().handle_async_request(request)


@dataclass(frozen=True, slots=True)
class ResumingClient:
    """A client that starts at one router and can resume at the others."""

    openai: AsyncOpenAI
    transport: CountingTransport


@asynccontextmanager
async def resuming_clients(addresses: Sequence[str]) -> AsyncIterator[Sequence[ResumingClient]]:
    """Yield a client for each router's address."""
    urls = [f"http://{address}" for address in addresses]
    clients = []
    async with AsyncExitStack() as stack:
        for url in urls:
            counting = CountingTransport()
            transport = AsyncResumingTransport(counting, routers=urls)
            http = httpx.AsyncClient(transport=transport, timeout=TIMEOUT_S)
            openai = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http)  # type: ignore[arg-type]  # openai 3 takes clients of httpx too, but is typed for httpx2
            clients.append(ResumingClient(await stack.enter_async_context(openai), counting))
        yield clients


class ResumedExchange(Exchange):
    """One request of such a client, for which a lost router is at most a pause."""

    async def run_resuming(self, clients: Sequence[ResumingClient]) -> Answer:
        """Run the request and return its complete response."""
        body: dict[str, Any] = self.case.body(self.salt)
        prompt = body.pop("prompt")
        create = clients[self.first_router % len(clients)].openai.completions.with_raw_response.create
        response = await create(model="bundled_model", prompt=prompt, extra_body=body, stream=True)
        self.decode_worker = response.headers.get("x-baton-decode", "")
        token_ids: list[int] = []
        text, finish_reasons, num_tokens = "", [], -1
        async for chunk in response.parse():
            if chunk.usage is not None:
                num_tokens = chunk.usage.completion_tokens
            for choice in chunk.choices:
                new_ids: list[int] = choice.model_extra["token_ids"]  # type: ignore[index]  # requested by `return_token_ids`
                token_ids += new_ids
                text += choice.text
                finish_reasons += [choice.finish_reason] if choice.finish_reason else []
                if new_ids:
                    self.receive(len(new_ids))
        if len(finish_reasons) != 1:
            raise WrongAnswer(f"finish reasons {finish_reasons}")
        return Answer(tuple(token_ids), text, finish_reasons[0], num_tokens)
