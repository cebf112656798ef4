"""Requests under faults, and the check of their responses against an undisturbed run."""

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
ATTEMPTS = 3  # per client, each at the next router
FIRST_ID, NUM_IDS = 300, 3000  # tokens of words and word pieces in the bundled vocabulary


class WrongAnswer(Exception):
    """A response that differs from that of an undisturbed run."""


@dataclass(frozen=True, slots=True)
class Case:
    """A request with a deterministic response: greedy or seeded, and long enough to be disturbed."""

    prompt: list[int]
    options: dict[str, object]

    def body(self, salt: str) -> dict[str, object]:
        """Return the request's body; a unique salt keeps it from hitting other requests' cached blocks."""
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
    """The response that a client received."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    num_completion_tokens: int  # from `usage`


@dataclass(slots=True, eq=False)
class Exchange:
    """One request in flight."""

    case: Case
    salt: str
    first_router: int = 0  # index of the router of the first attempt
    hints: dict[str, str] = field(default_factory=dict)  # headers that name workers or the plan
    sent_s: float = field(default_factory=time.monotonic)
    token_times_s: list[float] = field(default_factory=list)  # arrival times of tokens, over all attempts
    decode_worker: str = ""
    num_tokens: int = 0  # received, over all attempts
    num_attempts: int = 0
    has_new_tokens: asyncio.Event = field(default_factory=asyncio.Event)

    def next_token_s(self, after_s: float) -> float | None:
        """Return the time from a moment to the next token; None if all had arrived by then."""
        return next((at_s - after_s for at_s in self.token_times_s if at_s > after_s), None)

    @property
    def longest_pause_s(self) -> float:
        """Return the longest time without a token, counted from the request."""
        return max(after_s - before_s for before_s, after_s in pairwise((self.sent_s, *self.token_times_s)))

    def receive(self, count: int) -> None:
        """Record the arrival of `count` tokens."""
        self.num_tokens += count
        self.token_times_s.append(time.monotonic())
        self.has_new_tokens.set()

    async def wait_tokens(self, count: int) -> None:
        """Wait until the client has received `count` tokens in total."""
        while self.num_tokens < count:
            self.has_new_tokens.clear()
            await self.has_new_tokens.wait()

    async def run(self, clients: Sequence[httpx.AsyncClient]) -> Answer:
        """Send the request, retrying at the next router if one is lost, and return the response."""
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
    """Create cases, half of them greedy, half sampled with a seed and penalties."""
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
