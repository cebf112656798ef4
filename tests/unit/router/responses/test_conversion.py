"""The chat request that a response request becomes, and the client's names in errors about it."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from baton.engine.errors import InvalidRequest
from baton.router.errors import FieldError, NoWorker
from baton.router.http.body_reader import read_body
from baton.router.openai.chat import ChatRequest
from baton.router.openai.messages import template_messages
from baton.router.responses.conversation import Conversation, chat_messages, chat_request
from baton.router.responses.field_names import FieldNames, MessageNames
from baton.router.responses.items import STORED_ITEMS, stored_item
from baton.router.responses.request import ResponseRequest, SharedFields
from baton.router.responses.stored import StoredResponse
from tests.unit.router.anthropic.conversion import PLAIN, template_of

CALL = {"type": "function_call", "call_id": "call_1", "name": "clock", "arguments": '{"zone": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "noon"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
TOOL = {"type": "function", "name": "clock", "parameters": {"type": "object"}, "strict": True}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def converted(earlier: Sequence[StoredResponse] = (), **fields: Any) -> tuple[ChatRequest, FieldNames]:
    body = ResponseRequest.model_validate(fields)
    messages = chat_messages(body, Conversation(earlier, body.input))
    names = FieldNames(messages.names)
    return chat_request(body, messages, names), names


def shown(items: object, **fields: Any) -> Any:
    """Return the messages for the chat template."""
    return list(template_messages(converted(input=items, **fields)[0].messages))


def test_a_text_and_instructions() -> None:
    assert shown("Hi", instructions="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_the_items_of_a_turn_are_one_message() -> None:
    second = CALL | {"call_id": "call_2", "arguments": "{}"}
    items = [{"role": "user", "content": "?"}, THOUGHT, said("Wait."), CALL, second, OUTPUT, said("It is noon.")]
    _, turn, result, last = shown(items)
    assert (turn["role"], turn["content"], turn["reasoning_content"]) == ("assistant", "Wait.", "Hm.")
    assert [call["id"] for call in turn["tool_calls"]] == ["call_1", "call_2"]
    assert turn["tool_calls"][0]["function"] == {"name": "clock", "arguments": {"zone": 1}}
    assert result == {"role": "tool", "content": "noon", "tool_call_id": "call_1"}
    assert last == {"role": "assistant", "content": "It is noon."}


def test_turns_are_separate() -> None:
    assert [each["content"] for each in shown([said("a"), said("b"), THOUGHT, said("c")])] == ["a", "b", "c"]
    first, second = shown([CALL, THOUGHT, CALL | {"call_id": "call_2"}])
    assert "reasoning_content" not in first
    assert second["reasoning_content"] == "Hm."


def test_reasoning_alone_is_left_out() -> None:
    assert shown([{"role": "user", "content": "a"}, THOUGHT]) == [{"role": "user", "content": "a"}]
    summary = THOUGHT | {"content": None, "summary": [{"type": "summary_text", "text": "Short."}]}
    assert shown([summary, said("a")])[0]["reasoning_content"] == "Short."
    encrypted = {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}
    assert shown([encrypted, said("a")]) == [{"role": "assistant", "content": "a"}]


def test_parts_of_a_function_output_and_a_refusal() -> None:
    parts = [{"type": "input_text", "text": "no"}, {"type": "input_text", "text": "on"}]
    assert shown([CALL, OUTPUT | {"output": parts}])[1]["content"] == "no\non"
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert shown([refusal]) == [{"role": "assistant", "content": "No."}]


IMAGE_PARTS = [
    {"type": "input_text", "text": "What is "},
    {"type": "input_image", "image_url": "data:x", "detail": "low"},
]


def test_images_are_parts_of_messages() -> None:
    chat, names = converted(input=[{"role": "user", "content": IMAGE_PARTS}])
    prompt = chat.prompt(chat.tool_use(), template_of(PLAIN))
    assert prompt.messages == [{"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "image"}]}]
    [image] = prompt.images
    assert (image.url, names.translate(image.field)) == ("data:x", "input[0].content[1].image_url")


def test_a_stored_image_is_the_same() -> None:
    [item] = STORED_ITEMS.validate_python([{"role": "user", "content": IMAGE_PARTS}])
    stored = stored_item(item, "msg_1")
    assert stored["content"] == IMAGE_PARTS
    assert shown([stored]) == shown([{"role": "user", "content": IMAGE_PARTS}])


@pytest.mark.parametrize("part", [{"type": "input_file"}, {"type": "input_image", "file_id": "file-1"}])
def test_files_are_refused(part: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        converted(input=[{"role": "user", "content": [part]}])


def test_an_image_without_a_url_is_refused_by_its_name() -> None:
    chat, names = converted(input=[{"role": "user", "content": [{"type": "input_image"}]}])
    with pytest.raises(FieldError, match="has no image_url") as refused:
        chat.prompt(chat.tool_use(), template_of(PLAIN))
    assert names.translate(refused.value.field) == "input[0].content[0]"


def test_an_earlier_response_has_its_items_and_not_its_instructions() -> None:
    earlier = StoredResponse([{"role": "user", "content": "a"}], {"output": [said("b")], "instructions": "Shout."})
    chat, _ = converted([earlier], input="c")
    assert [each["content"] for each in template_messages(chat.messages)] == ["a", "b", "c"]


def test_what_is_stored_is_the_same_conversation() -> None:
    items = [{"role": "user", "content": "?"}, THOUGHT, said("Wait."), CALL, OUTPUT]
    parsed = STORED_ITEMS.validate_python(items)
    stored = [stored_item(item, f"id_{place}") for place, item in enumerate(parsed)]
    assert [each["id"] for each in stored] == [f"id_{place}" for place in range(5)]
    assert shown(stored) == shown(items)
    assert stored[0]["content"] == [{"type": "input_text", "text": "?"}]
    assert stored[2]["content"] == [{"type": "output_text", "text": "Wait.", "annotations": []}]


def test_all_options_reach_the_chat_request() -> None:
    schema = {"type": "object", "properties": {}}
    chat, _ = converted(
        input="a", stream=True, max_output_tokens=7, temperature=0.5, top_p=0.25, seed=3, priority=2, cache_salt="s",
        stop="x", top_k=5, user="me", tools=[TOOL], tool_choice={"type": "function", "name": "clock"}, top_logprobs=2,
        parallel_tool_calls=False, reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": False}, "verbosity": "low"},
        max_tool_calls=3, metadata={"a": "b"}, service_tier="flex", prompt_cache_key="k", safety_identifier="me",
        include=["reasoning.encrypted_content"], truncation="disabled", background=False,
        stream_options={"include_obfuscation": False},
    )  # fmt: skip
    assert (chat.max_completion_tokens, chat.temperature, chat.top_p, chat.seed) == (7, 0.5, 0.25, 3)
    assert (chat.priority, chat.cache_salt, chat.stop, chat.top_k, chat.user) == (2, "s", ["x"], 5, "me")
    assert chat.stream_options is not None
    assert chat.stream_options.include_usage
    assert chat.num_logprobs() == 2
    assert chat.reasoning_effort == "low"
    use = chat.tool_use()
    assert (use.is_required, use.is_parallel, [tool.strict for tool in use.offered]) == (True, False, [True])
    grammar = chat.grammar()
    assert grammar is not None
    assert grammar.field == "response_format.json_schema.schema"


def test_shared_fields_are_those_of_chat() -> None:
    own, chat = (model.model_json_schema()["properties"] for model in (SharedFields, ChatRequest))
    for name, field in own.items():
        assert field["anyOf"] == chat[name]["anyOf"], name


def test_the_choice_among_tools() -> None:
    other = TOOL | {"name": "weather"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    use = converted(input="a", tools=[TOOL, other], tool_choice=allowed)[0].tool_use()
    assert (use.is_required, use.is_limited, [tool.name for tool in use.offered]) == (True, True, ["weather"])
    for mode, num_offered in (("none", 0), ("auto", 2), ("required", 2)):
        assert len(converted(input="a", tools=[TOOL, other], tool_choice=mode)[0].tool_use().offered) == num_offered


NAMES = FieldNames(
    [
        MessageNames("instructions"),
        MessageNames("previous_response_id"),
        MessageNames("input[0]"),
        MessageNames("input[1]", ("input[2]", "input[3]")),
        MessageNames("input[4]", content=".output"),
    ]
)
RENAMED = [
    ("messages[0].content", "instructions"),
    ("messages[1].tool_calls[0].function.arguments", "previous_response_id"),
    ("messages[2].content[1]", "input[0].content[1]"),
    ("messages[3].content[1].text", "input[1].content[1].text"),
    ("messages[3].tool_calls[1].function.arguments", "input[3].arguments"),
    ("messages[3].tool_calls[0].id", "input[2].call_id"),
    ("messages[4].tool_call_id", "input[4].call_id"),
    ("messages[4].content[0]", "input[4].output[0]"),
    ("messages[99].content", "input"),
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
    ("max_completion_tokens", "max_output_tokens"),
    ("tools[3].function.parameters", "tools[3].parameters"),
    ("tool_choice.function.name", "tool_choice.name"),
    ("tool_choice.allowed_tools.tools[2].function.name", "tool_choice.tools[2].name"),
    ("response_format", "text.format"),
    ("response_format.json_schema.schema", "text.format.schema"),
    ("reasoning_effort", "reasoning.effort"),
    ("logprobs", "top_logprobs"),
    ("temperature", "temperature"),
    ("top_logprobs", "top_logprobs"),
]


@pytest.mark.parametrize(("field", "expected"), RENAMED)
def test_fields_in_errors_are_the_clients(field: str, expected: str) -> None:
    error = NAMES.renamed(FieldError(field, f"{field}: is wrong", "a_code"))
    assert isinstance(error, FieldError)
    assert (error.field, error.code) == (expected, "a_code")
    if field not in ("logprobs",):
        assert str(error).startswith(f"{expected}: ")


def test_errors_of_workers_are_renamed_too() -> None:
    error = NAMES.renamed(InvalidRequest("response_format.json_schema.schema: not is not supported"))
    assert isinstance(error, FieldError)
    assert error.field == "text.format.schema"
    unchanged = NoWorker("no decode worker is ready")
    assert NAMES.renamed(unchanged) is unchanged


def test_a_stored_item_that_chat_refuses() -> None:
    broken = StoredResponse([], {"output": [CALL | {"arguments": '{"zo'}]})
    with pytest.raises(FieldError) as caught:
        converted([broken], input="a")
    assert caught.value.field == "previous_response_id"
    assert "must be valid JSON" in str(caught.value)


REFUSED = [
    ({"input": "a", "conversation": "c"}, "conversation"),
    ({"input": "a", "prompt": {"id": "p"}}, "prompt"),
    ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": "a"}, THOUGHT | {"summary": "b"}]}, "input[1].summary"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": "a"}] * 9000}, "input"),
    ({"input": [1]}, "input[0]"),
    ({"input": "a", "metadata": {"a": "b" * 513}}, "metadata.a"),
    ({"input": "a", "previous_response_id": "a:b"}, "previous_response_id"),
    ({"input": "a", "tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
    ({"input": "a", "tool_choice": "any"}, "tool_choice"),
    ({"input": "a", "include": ["all"]}, "include[0]"),
    ({"input": "a", "n": 2}, "n"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_bodies_that_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as caught:
        read_body(ResponseRequest, orjson.dumps(fields))
    assert caught.value.field == param
    assert param in str(caught.value)
