"""A client that resumes its request at one router after the other, over plain HTTP."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from baton.router.http.headers import RESUMABLE, RESUME

DONE = "[DONE]"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass
class Resuming:
    """One request and the events received so far."""

    clients: Sequence[httpx.AsyncClient]
    path: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    position: str = "0"
    events: list[dict[str, Any]] = field(default_factory=list)  # up to the position
    num_attempts: int = 0
    is_done: bool = False
    last: httpx.Response | None = None

    def request_headers(self) -> dict[str, str]:
        """Return the headers of the next attempt."""
        headers = {"x-request-id": self.request_id, RESUMABLE: "true", **self.headers}
        return {**headers, RESUME: f"{self.request_id}; tokens={self.position}"} if self.num_attempts else headers

    async def attempt(self, num_events: int | None = None) -> None:
        """Read `num_events` events with an id, or all, at the next router; then close the connection."""
        client = self.clients[self.num_attempts % len(self.clients)]
        content, headers = orjson.dumps(self.body), {**self.request_headers(), "content-type": "application/json"}
        self.num_attempts += 1
        held: list[dict[str, Any]] = []  # since the last position: the next attempt repeats them
        async with client.stream("POST", self.path, content=content, headers=headers) as response:
            self.last = response
            if response.status_code != 200:
                await response.aread()
                return
            event_id: str | None = None
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    event_id = line.removeprefix("id: ")
                if not line.startswith("data: "):
                    continue
                data = line.removeprefix("data: ")
                self.is_done = data == DONE
                if not self.is_done:
                    held.append(orjson.loads(data))
                if event_id is not None or self.is_done:
                    self.position = event_id or self.position
                    self.events += held
                    held, event_id = [], None
                    num_events = None if num_events is None else num_events - 1
                    if num_events == 0:
                        return

    async def to_end(self) -> "Resuming":
        """Read the remaining events."""
        await self.attempt()
        assert self.last is not None
        assert self.last.status_code == 200, self.last.text
        assert self.is_done, self.events[-1:]
        return self


@dataclass
class Outcome:
    """The contents of a stream, independent of its division into events."""

    texts: dict[int, str] = field(default_factory=dict)
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[Any]] = field(default_factory=dict)
    text_offsets: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, list[Any]] = field(default_factory=dict)  # finish and stop reasons, each once
    roles: dict[int, int] = field(default_factory=dict)
    prompts: int = 0
    usage: dict[str, int] | None = None

    def add(self, event: dict[str, Any]) -> None:
        """Add an event."""
        assert "error" not in event, event
        if event.get("usage"):
            self.usage = {name: event["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
        for choice in event["choices"]:
            index, delta = choice["index"], choice.get("delta", {})
            self.texts[index] = self.texts.get(index, "") + (choice.get("text") or delta.get("content") or "")
            self.roles[index] = self.roles.get(index, 0) + ("role" in delta)
            self.token_ids.setdefault(index, []).extend(choice.get("token_ids") or ())
            self.prompts += "prompt_token_ids" in choice
            logprobs = choice.get("logprobs") or {}
            if "content" in logprobs:
                self.logprobs.setdefault(index, []).extend(logprobs["content"])
            elif logprobs:
                rows = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
                self.logprobs.setdefault(index, []).extend(rows)
                self.text_offsets.setdefault(index, []).extend(logprobs["text_offset"])
            if choice.get("finish_reason"):
                self.ends.setdefault(index, []).append((choice["finish_reason"], choice.get("stop_reason")))


def outcome(events: Sequence[dict[str, Any]]) -> Outcome:
    """Return the outcome of a stream's events."""
    found = Outcome()
    for event in events:
        found.add(event)
    return found
