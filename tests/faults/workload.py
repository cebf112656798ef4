"""What is asked for under faults, and whether the answer is the one of an undisturbed run."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import orjson

NUM_CASES = 8
ATTEMPTS = 3  # of a client, at one router after the other
FIRST_ID, NUM_IDS = 300, 3000  # words and pieces of words of the bundled vocabulary


class WrongAnswer(Exception):
    """An answer that is not the one of an undisturbed run."""


@dataclass(frozen=True, slots=True)
class Case:
    """A request with one right answer: greedy or seeded, and long enough to be disturbed."""

    prompt: list[int]
    options: dict[str, object]

    def body(self, salt: str) -> dict[str, object]:
        """The request; a salt of its own keeps it from what other requests left in the caches."""
        return {
            "prompt": self.prompt,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "ignore_eos": True,
            "cache_salt": salt,
            **self.options,
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client got."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    num_completion_tokens: int  # as the usage says


@dataclass(slots=True, eq=False)
class Exchange:
    """One request under way."""

    case: Case
    salt: str
    first_router: int = 0  # place of the one that is asked first
    hints: dict[str, str] = field(default_factory=dict)  # headers that name workers or the plan
    sent_s: float = field(default_factory=time.monotonic)
    news_s: list[float] = field(default_factory=list)  # when tokens came, over all attempts
    decode_worker: str = ""
    num_tokens: int = 0  # received, over all attempts
    num_attempts: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def next_news_s(self, after_s: float) -> float | None:
        """Time from a moment to the next token; None if it had all by then."""
        return next((at_s - after_s for at_s in self.news_s if at_s > after_s), None)

    @property
    def longest_pause_s(self) -> float:
        """Longest time without a token, from the request on."""
        return max(after_s - before_s for before_s, after_s in pairwise((self.sent_s, *self.news_s)))

    def receive(self, count: int) -> None:
        """Note that so many tokens came."""
        self.num_tokens += count
        self.news_s.append(time.monotonic())
        self.news.set()

    async def wait_tokens(self, count: int) -> None:
        """Return once the client has received so many tokens, one or several a message."""
        while self.num_tokens < count:
            self.news.clear()
            await self.news.wait()

    async def run(self, clients: Sequence[httpx.AsyncClient]) -> Answer:
        """The answer; a client whose router goes away asks the next one, as any client of several would."""
        while True:
            try:
                return await self._ask(clients[(self.first_router + self.num_attempts) % len(clients)])
            except httpx.TransportError:
                self.num_attempts += 1
                if self.num_attempts >= ATTEMPTS:
                    raise

    async def _ask(self, client: httpx.AsyncClient) -> Answer:
        token_ids: list[int] = []
        text, finish_reason, num_tokens = "", "", -1
        body = self.case.body(self.salt)
        async with client.stream("POST", "/v1/completions", json=body, headers=self.hints) as response:
            if response.status_code != 200:
                await response.aread()
                raise WrongAnswer(f"status {response.status_code}: {response.text}")
            self.decode_worker = response.headers["x-baton-decode"]
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event: dict[str, Any] = orjson.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise WrongAnswer(f"an error in the stream: {event['error']}")
                if event.get("usage"):
                    num_tokens = event["usage"]["completion_tokens"]
                for choice in event["choices"]:
                    token_ids += choice["token_ids"]
                    text += choice["text"]
                    finish_reason = choice["finish_reason"] or finish_reason
                    self.receive(len(choice["token_ids"]))
        return Answer(tuple(token_ids), text, finish_reason, num_tokens)


def make_cases(seed: int, num_prompt_tokens: int, num_output_tokens: int) -> list[Case]:
    """Half of them greedy, half sampled with a seed and penalties."""
    rng = random.Random(seed)
    cases = []
    for index in range(NUM_CASES):
        length = rng.randint(num_prompt_tokens // 2, num_prompt_tokens)
        prompt = [FIRST_ID + rng.randrange(NUM_IDS) for _ in range(length)]
        options: dict[str, object] = {"max_tokens": rng.randint(num_output_tokens // 2, num_output_tokens)}
        if index % 2:
            options |= {"temperature": 0.8, "top_p": 0.95, "seed": rng.randrange(1 << 40), "frequency_penalty": 0.3}
        else:
            options |= {"temperature": 0}
        cases.append(Case(prompt, options))
    return cases
