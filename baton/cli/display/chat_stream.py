"""One streamed chat completion, as OpenAI's HTTP interface gives it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from baton.rpc.router_client import ServerError, check


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str  # system, user or assistant
    content: str


@dataclass(slots=True)
class Answer:
    """A completion that is on its way; filled while its text is read."""

    headers: Mapping[str, str]
    events: Iterator[str]  # data of the server-sent events
    finish_reason: str | None = None
    usage: Mapping[str, object] = field(default_factory=dict)

    def text(self) -> Iterator[str]:
        """The text, piece by piece. Raises ServerError if the server breaks the answer off."""
        for data in self.events:
            chunk = json.loads(data)
            if "error" in chunk:
                raise ServerError(str(chunk["error"].get("message", chunk["error"])))
            self.usage = chunk.get("usage") or self.usage
            for choice in chunk.get("choices", ()):
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
                if piece := choice.get("delta", {}).get("content"):
                    yield piece

    def how_served(self) -> str:
        """Which workers served it, how its KV travelled, and what it cost."""
        told = {
            name.removeprefix("x-baton-"): value for name, value in self.headers.items() if name.startswith("x-baton-")
        }
        parts = [f"{name.replace('-', ' ')} {value}" for name, value in told.items() if value]
        parts += [f"{name.replace('_', ' ')} {value}" for name, value in self.usage.items() if isinstance(value, int)]
        return ", ".join(parts) or "the server does not say"


@contextmanager
def ask(
    client: httpx.Client, model: str, messages: list[Message], options: Mapping[str, float | int]
) -> Iterator[Answer]:
    """Asks for the next turn; leaving the context cancels the request.

    Raises ServerError if the server refuses, httpx.TransportError if it cannot be reached.
    """
    body = {
        "model": model,
        "messages": [{"role": message.role, "content": message.content} for message in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        **options,
    }
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        check(response)
        yield Answer(response.headers, sse_data(response.iter_lines()))


def sse_data(lines: Iterator[str]) -> Iterator[str]:
    """The data of each server-sent event up to `[DONE]` (WHATWG HTML, section 9.2: lines of one event are joined)."""
    data: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            if data == ["[DONE]"]:
                return
            yield "\n".join(data)
            data = []
    if data and data != ["[DONE]"]:
        yield "\n".join(data)
