"""One streamed chat completion of the OpenAI API."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from baton.rpc.router_client import MAX_ERROR_CHARS, ServerError, check


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str  # system, user or assistant
    content: str


@dataclass(slots=True)
class Answer:
    """A streaming completion. `finish_reason` and `usage` are set while its text is read."""

    headers: Mapping[str, str]
    events: Iterator[str]  # data of the server-sent events
    finish_reason: str | None = None
    usage: Mapping[str, object] = field(default_factory=dict)

    def text(self) -> Iterator[str]:
        """Yield the text in pieces. Raises ServerError if the server sends an error event, or no JSON."""
        for data in self.events:
            try:
                chunk = json.loads(data)
            except (ValueError, RecursionError) as error:
                raise ServerError(f"an event of the server is not JSON: {data[:MAX_ERROR_CHARS]!r}") from error
            if "error" in chunk:
                raise ServerError(str(chunk["error"].get("message", chunk["error"])))
            self.usage = chunk.get("usage") or self.usage
            for choice in chunk.get("choices", ()):
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
                if piece := choice.get("delta", {}).get("content"):
                    yield piece

    def how_served(self) -> str:
        """Return the workers that served it, the KV transport and the token counts, from `x-baton-*` and `usage`."""
        fields = {
            name.removeprefix("x-baton-"): value for name, value in self.headers.items() if name.startswith("x-baton-")
        }
        parts = [f"{name.replace('-', ' ')} {value}" for name, value in fields.items() if value]
        parts += [f"{name.replace('_', ' ')} {value}" for name, value in self.usage.items() if isinstance(value, int)]
        return ", ".join(parts) or "the server sent no details"


@contextmanager
def ask(
    client: httpx.Client, model: str, messages: list[Message], options: Mapping[str, float | int]
) -> Iterator[Answer]:
    """Request the next message; leaving the context cancels the request.

    Raises ServerError if the server rejects the request, httpx.TransportError if it cannot be reached.
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
    """Yield the data of each server-sent event before `[DONE]`, with its lines joined (WHATWG HTML, section 9.2)."""
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
