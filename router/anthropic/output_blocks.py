"""The content blocks of a message, streamed or whole."""

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import orjson

from baton.router.anthropic.request import ThinkingDisplay
from baton.router.openai.chat_parts import CallIds, ShownPart, merged, without_reasoning
from baton.router.parsing.base import CallArguments, CallStart, Content, OutputPart, Reasoning

Json = dict[str, object]

INVALID_JSON = "INVALID_JSON"  # key of an input that is no JSON object, as Anthropic's documentation wraps it
CHAT_PREFIX, PREFIX = "call_", "toolu_"  # of the ids of calls
SIGNATURE_BYTES = 16


def event(name: str, fields: bytes) -> bytes:
    """Return an event with the fields of its JSON: `b'"index":0'`."""
    kind = name.encode()
    return b'event: %b\ndata: {"type":"%b"%b}\n\n' % (kind, kind, b"," + fields if fields else b"")


def tool_id(call: CallStart, ids: CallIds) -> str:
    """Return the id of a call: the one that the model wrote, otherwise one with Anthropic's prefix."""
    call_id = ids.call_id(0, call)
    return call_id if call.call_id is not None else PREFIX + call_id.removeprefix(CHAT_PREFIX)


def tool_input(arguments: str) -> Json | orjson.Fragment:
    """Return the object that the arguments of a call are; other texts under the key `INVALID_JSON`.

    The object is as the model wrote it, and as a stream has it: no number is rounded, and objects that are nested too
    deeply for the encoder are sent, too.
    """
    if not arguments.strip():
        return {}
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        value = None
    return orjson.Fragment(arguments.strip()) if isinstance(value, dict) else {INVALID_JSON: arguments}


class Signature:
    """Signature of a block of reasoning: a digest of its text, as the text is not secret and any is accepted back."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=SIGNATURE_BYTES, person=b"baton-thinking")

    def add(self, text: str) -> None:
        """Add text of the block."""
        self._digest.update(text.encode("utf-8", "replace"))

    def text(self) -> str:
        """Return the signature: hexadecimal digits."""
        return self._digest.hexdigest()


def shown_parts(parts: Iterable[OutputPart], display: ThinkingDisplay) -> Iterator[ShownPart]:
    """Return the parts that a message shows, with adjacent texts of the same kind joined."""
    return merged(without_reasoning(parts) if display == "hidden" else parts)


def content_blocks(parts: Iterable[OutputPart], ids: CallIds, display: ThinkingDisplay) -> list[Json]:
    """Return the content of a message with these parts."""
    blocks: list[Json] = []
    calls: dict[int, Json] = {}
    for part in shown_parts(parts, display):
        match part:
            case Content(text=text):
                blocks.append({"type": "text", "text": text})
            case Reasoning(text=text):
                signature = Signature()
                signature.add(text)
                shown = "" if display == "omitted" else text
                blocks.append({"type": "thinking", "thinking": shown, "signature": signature.text()})
            case CallStart():
                calls[part.index] = {"type": "tool_use", "id": tool_id(part, ids), "name": part.name, "input": {}}
                blocks.append(calls[part.index])
            case CallArguments():
                calls[part.index]["input"] = tool_input(part.text)
    return blocks


class BlockStream:
    """Events of the content blocks of one message, of which at most one is open."""

    def __init__(self, ids: CallIds, display: ThinkingDisplay) -> None:
        self._ids = ids
        self._display = display
        self._index = -1  # of the last block
        self._open: type[ShownPart] | None = None  # kind of the open block: a call's is CallArguments
        self._signature = Signature()  # of the open block, if it is reasoning
        self._has_input = False  # the open block is a call with arguments

    def events(self, parts: Iterable[OutputPart]) -> Iterator[bytes]:
        """Yield the events of further parts."""
        for part in shown_parts(parts, self._display):
            match part:
                case CallStart():
                    yield from self._begin(CallArguments, self._call(part))
                case CallArguments(text=text):
                    text = text if self._has_input else text.lstrip()
                    if text:
                        self._has_input = True
                        yield self._delta(b"input_json_delta", b"partial_json", text)
                case Reasoning(text=text):
                    if self._open is not Reasoning:
                        yield from self._begin(Reasoning, {"type": "thinking", "thinking": "", "signature": ""})
                        self._signature = Signature()
                    self._signature.add(text)
                    if self._display != "omitted":
                        yield self._delta(b"thinking_delta", b"thinking", text)
                case Content(text=text):
                    if self._open is not Content:
                        yield from self._begin(Content, {"type": "text", "text": ""})
                    yield self._delta(b"text_delta", b"text", text)

    def end(self) -> Iterator[bytes]:
        """Yield the events that end the open block, if there is one."""
        if self._open is None:
            return
        if self._open is Reasoning:
            yield self._delta(b"signature_delta", b"signature", self._signature.text())
        self._open = None
        yield event("content_block_stop", b'"index":%d' % self._index)

    def _begin(self, kind: type[ShownPart], block: Json) -> Iterator[bytes]:
        yield from self.end()
        self._index += 1
        self._open = kind
        self._has_input = False
        yield event("content_block_start", b'"index":%d,"content_block":%b' % (self._index, orjson.dumps(block)))

    def _call(self, part: CallStart) -> Json:
        return {"type": "tool_use", "id": tool_id(part, self._ids), "name": part.name, "input": {}}

    def _delta(self, kind: bytes, name: bytes, text: str) -> bytes:
        fields = (self._index, kind, name, orjson.dumps(text))
        return event("content_block_delta", b'"index":%d,"delta":{"type":"%b","%b":%b}' % fields)
