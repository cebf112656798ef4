"""The parts of an output in the chat API: content, reasoning and tool calls, streamed or whole."""

from array import array
from collections.abc import Iterable, Iterator
from functools import cached_property
from hashlib import blake2b
from zlib import crc32

from baton.router.generation import Generation
from baton.router.parsing.base import CallArguments, CallEnd, CallStart, Content, OutputPart, Reasoning

Json = dict[str, object]

ID_BYTES = 12


class CallIds:
    """Ids of the tool calls in one response, which are the same if the client resumes it."""

    def __init__(self, request_id: str, generation: Generation) -> None:
        """`request_id`: the client's; it may use the same one for every turn of a conversation."""
        self._request_id = request_id
        self._generation = generation

    @cached_property
    def _seed(self) -> str:
        """Return a text that differs between responses. Computed for the first call, since most responses have none."""
        prompt = crc32(array("I", self._generation.token_ids))
        return f"{self._request_id}/{prompt}/{self._generation.sampling.seed}"

    def call_id(self, completion: int, call: CallStart) -> str:
        """Return the id of a call: the one that the model wrote, otherwise one derived from its place."""
        if call.call_id is not None:
            return call.call_id
        digest = blake2b(f"{self._seed}/{completion}/{call.index}".encode(), digest_size=ID_BYTES)
        return f"call_{digest.hexdigest()}"


ShownPart = Content | Reasoning | CallStart | CallArguments


def merged(parts: Iterable[OutputPart]) -> Iterator[ShownPart]:
    """Yield the parts that responses have, with adjacent texts of the same kind joined."""
    texts: list[str] = []
    last: ShownPart | None = None
    for part in parts:
        if isinstance(part, CallEnd):
            continue
        if last is not None and not _continues(part, last):
            yield _with_text(last, texts)
            texts.clear()
        last = part
        if not isinstance(part, CallStart):
            texts.append(part.text)
    if last is not None:
        yield _with_text(last, texts)


def _continues(part: ShownPart, last: ShownPart) -> bool:
    if isinstance(part, CallArguments):
        return isinstance(last, CallArguments) and part.index == last.index
    return type(part) is type(last) and not isinstance(part, CallStart)


def _with_text(part: ShownPart, texts: list[str]) -> ShownPart:
    if isinstance(part, CallStart):
        return part
    if isinstance(part, CallArguments):
        return CallArguments(part.index, "".join(texts))
    return type(part)("".join(texts))


def without_reasoning(parts: Iterable[OutputPart]) -> list[OutputPart]:
    """Return the parts that are not reasoning."""
    return [part for part in parts if not isinstance(part, Reasoning)]


def part_delta(part: ShownPart, completion: int, ids: CallIds) -> Json:
    """Return `choices[].delta` of a chunk with one part."""
    match part:
        case Content():
            return {"content": part.text}
        case Reasoning():
            return {"reasoning_content": part.text, "reasoning": part.text}
        case CallStart():
            function: Json = {"name": part.name, "arguments": ""}
            call_id = ids.call_id(completion, part)
            return {"tool_calls": [{"index": part.index, "id": call_id, "type": "function", "function": function}]}
        case CallArguments():
            return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}


def parts_message(parts: Iterable[OutputPart], completion: int, ids: CallIds, with_reasoning: bool) -> Json:
    """Return the fields of the message with these parts: the content is null without any text."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[CallStart] = []
    arguments: dict[int, list[str]] = {}
    for part in parts:
        match part:
            case Content():
                content.append(part.text)
            case Reasoning():
                reasoning.append(part.text)
            case CallStart():
                calls.append(part)
                arguments[part.index] = []
            case CallArguments():
                arguments[part.index].append(part.text)
    text = "".join(content)
    message: Json = {"content": text if text or not (calls or reasoning) else None}
    if with_reasoning:
        message["reasoning_content"] = message["reasoning"] = "".join(reasoning) or None
    if calls:
        message["tool_calls"] = [
            {
                "id": ids.call_id(completion, call),
                "type": "function",
                "function": {"name": call.name, "arguments": "".join(arguments[call.index])},
            }
            for call in calls
        ]
    return message
