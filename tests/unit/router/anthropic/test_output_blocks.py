"""Content blocks: a stream has those of the whole message, however its parts are divided and merged."""

import json
import random
from collections.abc import Sequence

import anthropic.types as sdk
import orjson
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from pydantic import TypeAdapter

from baton.engine.sampling.params import SamplingParams
from baton.router.anthropic.output_blocks import INVALID_JSON, BlockStream, content_blocks, tool_input
from baton.router.anthropic.request import ThinkingDisplay
from baton.router.generation import Generation, GenerationRequest
from baton.router.openai.chat_parts import CallIds
from baton.router.parsing.base import CallArguments, CallEnd, CallStart, Content, OutputPart, Reasoning

GENERATION = Generation(
    GenerationRequest(request_id="", prompt=(), sampling=SamplingParams()), [1, 2], SamplingParams()
)
EVENT: TypeAdapter[sdk.RawMessageStreamEvent] = TypeAdapter(sdk.RawMessageStreamEvent)
START = {
    "type": "message_start",
    "message": {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 0},
    },
}  # fmt: skip
PARTS: Sequence[OutputPart] = [
    Reasoning("Let me see: Ö, "), Reasoning("\n<x>"), Content("I "), Content("look."), CallStart(0, "weather"),
    CallArguments(0, ' \n{"city": "Os'), CallArguments(0, 'lo", "n": [1, {"a": "}"}]}'), CallEnd(0, True),
    CallStart(1, "clock", "functions.clock:1"), CallEnd(1, False), Reasoning("Hm."), Content("Done."),
]  # fmt: skip


def whole_blocks(parts: Sequence[OutputPart], display: ThinkingDisplay) -> list[dict[str, object]]:
    """Return the blocks that a client reads."""
    blocks: list[dict[str, object]] = json.loads(orjson.dumps(content_blocks(parts, ids(), display)))
    return blocks


def ids() -> CallIds:
    return CallIds("msg_1", GENERATION)


def accumulated(events: bytes) -> list[object]:
    """Return the content that the client's accumulator makes of events, and check their order."""
    bodies = [orjson.loads(each.split("\n")[1].removeprefix("data: ")) for each in events.decode().split("\n\n")[:-1]]
    names = [each.split("\n")[0] for each in events.decode().split("\n\n")[:-1]]
    assert names == [f"event: {body['type']}" for body in bodies]
    buffers: dict[int, bytes] = {}
    snapshot = accumulate_event(event=EVENT.validate_python(START), current_snapshot=None, json_bufs=buffers)
    open_index = None
    for body in bodies:
        if body["type"] == "content_block_start":
            assert open_index is None
            open_index = body["index"]
            assert open_index == len(snapshot.content)
        assert body["index"] == open_index
        if body["type"] == "content_block_stop":
            open_index = None
        snapshot = accumulate_event(event=EVENT.validate_python(body), current_snapshot=snapshot, json_bufs=buffers)
    assert open_index is None
    return [block.model_dump(exclude_unset=True) for block in snapshot.content]


def divided(parts: Sequence[OutputPart], choose: random.Random) -> list[list[OutputPart]]:
    """Return deltas with the same texts, in pieces of a few characters, several of which are merged."""
    pieces: list[OutputPart] = []
    for part in parts:
        match part:
            case CallStart() | CallEnd():
                pieces.append(part)
            case CallArguments(index, text):
                pieces += [CallArguments(index, each) for each in text]
            case _:
                pieces += [type(part)(each) for each in part.text]
    deltas: list[list[OutputPart]] = [[]]
    for piece in pieces:
        deltas[-1].append(piece)
        if choose.random() < 0.4:
            deltas.append([])
    return deltas


@pytest.mark.parametrize("display", ["summarized", "omitted", "hidden"])
def test_a_stream_has_the_blocks_of_the_whole_message(display: ThinkingDisplay) -> None:
    whole = whole_blocks(PARTS, display)
    for seed in range(20):
        stream = BlockStream(ids(), display)
        events = b"".join(
            event for delta in divided(PARTS, random.Random(seed)) for event in stream.events(delta)
        ) + b"".join(stream.end())
        assert accumulated(events) == whole


def test_the_blocks() -> None:
    thought, text, weather, clock, later, done = whole_blocks(PARTS, "summarized")
    assert (thought["type"], thought["thinking"]) == ("thinking", "Let me see: Ö, \n<x>")
    assert thought["signature"] != later["signature"]
    assert text == {"type": "text", "text": "I look."}
    assert weather["input"] == {"city": "Oslo", "n": [1, {"a": "}"}]}
    assert str(weather["id"]).startswith("toolu_")
    assert clock == {"type": "tool_use", "id": "functions.clock:1", "name": "clock", "input": {}}
    assert done == {"type": "text", "text": "Done."}
    omitted = content_blocks(PARTS, ids(), "omitted")
    assert (omitted[0]["thinking"], omitted[0]["signature"]) == ("", thought["signature"])
    assert [block["type"] for block in content_blocks(PARTS, ids(), "hidden")] == [
        "text", "tool_use", "tool_use", "text",
    ]  # fmt: skip


def test_text_around_hidden_reasoning_is_one_block() -> None:
    parts = [Content("a"), Reasoning("x"), Content("b")]
    assert content_blocks(parts, ids(), "hidden") == [{"type": "text", "text": "ab"}]
    stream = BlockStream(ids(), "hidden")
    events = b"".join([*stream.events(parts[:1]), *stream.events(parts[1:]), *stream.end()])
    assert accumulated(events) == [{"type": "text", "text": "ab"}]


@pytest.mark.parametrize("text", ['{"a": ', "[1]", "5", "not JSON", '{"a": NaN}'])
def test_an_input_that_is_no_json_object_is_a_text(text: str) -> None:
    assert tool_input(text) == {INVALID_JSON: text}


def test_no_arguments_are_an_empty_input() -> None:
    assert tool_input("") == tool_input(" \n") == {}
    assert orjson.dumps(tool_input(" {}\n")) == b"{}"


@pytest.mark.parametrize(
    "arguments", ['{"id": 123456789012345678901234567890, "x": 0.10}', '{"a": ' + "[" * 1000 + "]" * 1000 + "}"]
)
def test_a_call_has_the_object_that_the_model_wrote(arguments: str) -> None:
    parts = [CallStart(0, "clock"), CallArguments(0, arguments), CallEnd(0, True)]
    whole = orjson.dumps(content_blocks(parts, ids(), "summarized"))
    assert whole.endswith(b'"name":"clock","input":%b}]' % arguments.encode())


def test_an_object_that_is_nested_too_deeply_to_be_checked_is_a_text() -> None:
    text = '{"a": ' + "[" * 2000 + "]" * 2000 + "}"
    assert tool_input(text) == {INVALID_JSON: text}


def test_an_empty_output_has_no_blocks() -> None:
    assert content_blocks([], ids(), "summarized") == []
    assert list(BlockStream(ids(), "summarized").end()) == []
