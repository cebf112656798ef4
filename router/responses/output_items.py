"""The output items of a response, which grow as it is generated, and the events of their growth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import orjson

from baton.router.openai.chat_parts import CallIds, ShownPart
from baton.router.parsing.base import CallArguments, CallStart, Content, Reasoning
from baton.router.responses.conversation import item_id
from baton.router.responses.items import Json

Emit = Callable[[str, Json], None]  # gets the type of an event, and its other fields
Kind = Literal["reasoning", "message", "function_call"]
DELTAS: dict[Kind, str] = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


def no_event(kind: str, fields: Json) -> None:
    """Drop an event, of a response that is not streamed."""


@dataclass(slots=True)
class _OpenItem:
    """The item that grows: always the last one."""

    kind: Kind
    item: Json  # without its text
    texts: list[str] = field(default_factory=list)
    logprobs: list[bytes] = field(default_factory=list)  # each as JSON: they are repeated four times at the end


class OutputItems:
    """Owns the items of one response."""

    def __init__(self, response_id: str, call_ids: CallIds, emit: Emit) -> None:
        self.items: list[Json] = []  # complete ones
        self._response_id = response_id
        self._call_ids = call_ids
        self._emit = emit
        self._open: _OpenItem | None = None

    def add(self, part: ShownPart, logprobs: Sequence[bytes] = ()) -> None:
        """Add a part of the output; `logprobs`: those of a message's tokens, each as JSON."""
        match part:
            case CallStart():
                call: Json = {"call_id": self._call_ids.call_id(0, part), "name": part.name}
                self._begin("function_call", call)
            case Reasoning():
                self._text("reasoning", part.text, ())
            case Content():
                self._text("message", part.text, logprobs)
            case CallArguments():
                self._text("function_call", part.text, ())

    def finish(self, is_complete: bool) -> None:
        """Close the last item. An output without any text is an empty message."""
        if self._open is None and not self.items:
            self._begin("message", {"role": "assistant"})
        self._close("completed" if is_complete else "incomplete")

    def _begin(self, kind: Kind, fields: Json) -> None:
        self._close("completed")
        place = len(self.items)
        item: Json = {"id": item_id(self._response_id, kind, f"o{place}"), "type": kind, **fields}
        self._open = _OpenItem(kind, item)
        self._emit(
            "response.output_item.added", {"output_index": place, "item": self._shown("in_progress", begun=True)}
        )
        if kind != "function_call":
            self._event("response.content_part.added", part=self._part())

    def _text(self, kind: Kind, text: str, logprobs: Sequence[bytes]) -> None:
        if self._open is None or self._open.kind != kind:
            self._begin(kind, {"role": "assistant"} if kind == "message" else {})
        assert self._open is not None
        self._open.texts.append(text)
        self._open.logprobs += logprobs
        more: Json = {"logprobs": _list(logprobs)} if kind == "message" else {}
        self._event(f"{DELTAS[kind]}.delta", delta=text, **more)

    def _close(self, status: str) -> None:
        opened = self._open
        if opened is None:
            return
        text = "".join(opened.texts)
        if opened.kind == "function_call":
            self._event(f"{DELTAS[opened.kind]}.done", name=opened.item["name"], arguments=text)
        else:
            more: Json = {"logprobs": _list(opened.logprobs)} if opened.kind == "message" else {}
            self._event(f"{DELTAS[opened.kind]}.done", text=text, **more)
            self._event("response.content_part.done", part=self._part())
        item = self._shown(status)
        self._emit("response.output_item.done", {"output_index": len(self.items), "item": item})
        self.items.append(item)
        self._open = None

    def _event(self, kind: str, **fields: object) -> None:
        """Emit an event of the open item."""
        opened = self._open
        assert opened is not None
        place: Json = {"item_id": opened.item["id"], "output_index": len(self.items)}
        if opened.kind != "function_call":
            place["content_index"] = 0
        self._emit(kind, {**place, **fields})

    def _shown(self, status: str, begun: bool = False) -> Json:
        """Return the open item; `begun`: without the part that its next event adds."""
        opened = self._open
        assert opened is not None
        item = {**opened.item, "status": status}
        match opened.kind:
            case "reasoning":
                return {**item, "summary": [], "content": [] if begun else [self._part()]}
            case "message":
                return {**item, "content": [] if begun else [self._part()]}
            case _:
                return {**item, "arguments": "".join(opened.texts)}

    def _part(self) -> Json:
        """Return the part with the text so far."""
        opened = self._open
        assert opened is not None
        text = "".join(opened.texts)
        if opened.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": _list(opened.logprobs)}


def _list(logprobs: Sequence[bytes]) -> orjson.Fragment:
    return orjson.Fragment(b"[%b]" % b",".join(logprobs))


def without_logprobs(items: Sequence[Json]) -> list[Json]:
    """Return items as they are stored: logprobs may take a hundred times the space of their text."""
    return [_without_logprobs(item) if item["type"] == "message" else item for item in items]


def _without_logprobs(message: Json) -> Json:
    parts = message["content"]
    assert isinstance(parts, list)
    return {**message, "content": [{**part, "logprobs": []} for part in parts]}
