"""A request in flight and its output, as a client sees them."""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.integration.matrix.feature import Feature

LOGPROB_TOLERANCE = 1e-4
HEADERS = {"x-request-id": "matrix"}  # the ids of tool calls are derived from it


@dataclass(slots=True)
class Completion:
    """One completion of a response."""

    token_ids: list[int] = field(default_factory=list)
    content: str = ""
    reasoning: str = ""
    calls: list[str] = field(default_factory=list)  # each the id, name and arguments of a tool call
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, choice: dict[str, Any]) -> None:
        """Add a part of the response."""
        delta = choice.get("delta", {})
        self.token_ids += choice.get("token_ids") or []
        self.content += choice.get("text") or delta.get("content") or ""
        self.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
        for call in delta.get("tool_calls") or ():
            if "id" in call:
                self.calls.append(f"{call['id']} {call['function']['name']} ")
            self.calls[-1] += call["function"]["arguments"]
        self.logprobs += (choice.get("logprobs") or {}).get("token_logprobs") or []
        self.finish_reason = choice["finish_reason"] or self.finish_reason

    def difference(self, expected: "Completion") -> str:
        """Return how it differs from another one; empty: not at all."""
        for name in ("token_ids", "content", "reasoning", "calls", "finish_reason"):
            found, wanted = getattr(self, name), getattr(expected, name)
            if found != wanted:
                return f"{name} {found} instead of {wanted}"
        pairs = list(zip(self.logprobs, expected.logprobs, strict=True))
        worst = max((abs(found - wanted) for found, wanted in pairs), default=0.0)
        return f"logprobs differ by {worst}" if worst > LOGPROB_TOLERANCE else ""


class Exchange:
    """A streamed request and what its client has received."""

    def __init__(self, client: httpx.AsyncClient, feature: Feature, salt: str) -> None:
        """`salt`: requests with different ones share no cached prefix."""
        self.feature = feature
        self.headers: httpx.Headers = httpx.Headers()
        self.completions = [Completion() for _ in range(feature.num_completions)]
        self.num_prompt_tokens = 0
        self.is_finished = False
        self._client = client
        fixed = {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
        self._body = {**feature.body, **fixed, "cache_salt": salt}

    @property
    def num_tokens(self) -> int:
        """Fewest tokens that a completion has received."""
        return min(len(each.token_ids) for each in self.completions)

    async def run(self) -> None:
        """Send the request and receive its output to the end."""
        async with self._client.stream("POST", self.feature.path, json=self._body, headers=HEADERS) as response:
            assert response.status_code == 200, (self.feature.name, await response.aread())
            self.headers = response.headers
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    self._add(json.loads(line.removeprefix("data: ")))
        self.is_finished = True

    def _add(self, event: dict[str, Any]) -> None:
        assert "choices" in event, (self.feature.name, event)
        for choice in event["choices"]:
            self.completions[choice["index"]].add(choice)
        if event.get("usage"):
            self.num_prompt_tokens = event["usage"]["prompt_tokens"]

    def count(self, header: str) -> int:
        """Return a number from the response's headers: x-baton-HEADER-tokens."""
        return int(self.headers[f"x-baton-{header}-tokens"])

    def difference(self, expected: "Exchange") -> str:
        """Return how the output differs from another request's; empty: not at all."""
        found = [mine.difference(other) for mine, other in zip(self.completions, expected.completions, strict=True)]
        return "; ".join(filter(None, found))
