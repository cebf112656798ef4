"""One streamed chat completion of the OpenAI API."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from baton.rpc.router_client import MAX_ERROR_CHARS, ServerError, check

Message = Mapping[str, object]


@dataclass(slots=True)
class Call:
    """A call of a tool."""

    call_id: str = ""
    name: str = ""
    arguments: str = ""  # JSON

    def message(self) -> Message:
        """Return the call as part of a message."""
        return {"id": self.call_id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class Part:
    """New text of an answer. Adjacent parts of one kind belong together; each call has another kind."""

    kind: str  # reasoning, content, or the id of a call
    text: str


@dataclass(slots=True)
class Answer:
    """A streaming completion. The other fields are set while its parts are read."""

    headers: Mapping[str, str]
    events: Iterator[str]  # data of the server-sent events
    content: str = ""
    calls: dict[int, Call] = field(default_factory=dict)  # by index
    finish_reason: str | None = None
    usage: Mapping[str, object] = field(default_factory=dict)

    def parts(self) -> Iterator[Part]:
        """Yield the new parts. Raises ServerError if the server sends an error event, or no chunk of a completion."""
        for data in self.events:
            try:
                yield from self._chunk(json.loads(data))
            except (ValueError, RecursionError, AttributeError, TypeError) as error:
                raise ServerError(f"an event of the server is not a completion: {data[:MAX_ERROR_CHARS]!r}") from error

    def message(self) -> Message:
        """Return the message of the assistant."""
        message: dict[str, object] = {"role": "assistant", "content": self.content}
        return message | ({"tool_calls": [call.message() for call in self.calls.values()]} if self.calls else {})

    def _chunk(self, chunk: Any) -> Iterator[Part]:
        if "error" in chunk:
            raise ServerError(str(chunk["error"].get("message", chunk["error"])))
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices", ()):
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            delta = choice.get("delta", {})
            if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
                yield Part("reasoning", reasoning)
            if content := delta.get("content"):
                self.content += content
                yield Part("content", content)
            for call_delta in delta.get("tool_calls") or ():
                yield self._call(call_delta)

    def _call(self, delta: Any) -> Part:
        call = self.calls.setdefault(delta.get("index", 0), Call())
        function = delta.get("function", {})
        name, arguments = function.get("name") or "", function.get("arguments") or ""
        call.call_id += delta.get("id") or ""
        call.name += name
        call.arguments += arguments
        return Part(call.call_id, f"{name} {arguments}" if name else arguments)

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
    client: httpx.Client, model: str, messages: Sequence[Message], options: Mapping[str, object]
) -> Iterator[Answer]:
    """Request the next message; leaving the context cancels the request.

    Raises ServerError if the server rejects the request, httpx.TransportError if it cannot be reached.
    """
    body = {
        "model": model,
        "messages": messages,
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
