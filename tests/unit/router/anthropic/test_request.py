"""Fields of requests: what they become in a chat request, what is ignored, and what is refused under which name."""

import time
from typing import Any, get_type_hints

import anthropic.types as sdk
import orjson
import pytest
from anthropic.types import message_create_params

from baton.engine.errors import InvalidRequest
from baton.router.anthropic.request import CountTokensRequest, MessagesRequest
from baton.router.errors import FieldError
from baton.router.http.body_reader import read_body
from baton.router.openai.tools import MAX_TOOLS_BYTES
from tests.unit.router.anthropic.conversion import (
    EFFORT,
    HELLO,
    PLAIN,
    REASONING,
    THINKING,
    call,
    converted,
    read,
    template_of,
    text,
    tool,
)

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


def said(*blocks: Any) -> list[Any]:
    return [{"role": "user", "content": list(blocks)}]


AS_CHAT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_tokens": 0}, {"max_tokens": 0, "stream": False, "stream_options": None}),
    ({"temperature": 2, "top_p": 0.5, "top_k": 3}, {"temperature": 2, "top_p": 0.5, "top_k": 3}),
    ({"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
    ({"metadata": {"user_id": "me"}}, {"user": "me"}),
    ({"seed": 7, "priority": 3, "cache_salt": "s", "min_tokens": 2}, {"seed": 7, "priority": 3, "cache_salt": "s"}),
    ({"tools": [tool()]}, {"tool_choice": None, "parallel_tool_calls": True}),
    ({"tools": [tool()], "tool_choice": {"type": "auto"}}, {"tool_choice": None}),
    ({"tools": [tool()], "tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
    (
        {"tools": [tool()], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        {"tool_choice": "required", "parallel_tool_calls": False},
    ),
]


@pytest.mark.parametrize(("fields", "chat"), AS_CHAT)
def test_fields_of_the_chat_request(fields: dict[str, Any], chat: dict[str, Any]) -> None:
    request = converted(**fields)
    assert {name: getattr(request, name) for name in chat} == chat


def test_a_stream_has_its_usage() -> None:
    options = converted(stream=True).stream_options
    assert options is not None
    assert options.include_usage


def test_images_are_parts_under_their_own_names() -> None:
    by_url = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    request = converted(system="Be brief.", messages=said(text("What is "), IMAGE, text("?"), by_url))
    prompt = request.prompt(request.tool_use(), template_of(PLAIN))
    assert [each["content"] for each in prompt.messages] == [
        "Be brief.",
        [{"type": "text", "text": "What is "}, {"type": "image"}, {"type": "text", "text": "?"}, {"type": "image"}],
    ]
    assert [(each.field, each.url) for each in prompt.images] == [
        ("messages[0].content[1].source", "data:image/png;base64,"),
        ("messages[0].content[3].source", "https://example.org/a.png"),
    ]


def test_images_of_results_follow_all_results_in_the_users_message() -> None:
    shot = {"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}
    page = {"type": "tool_result", "tool_use_id": "b", "content": [text("A page"), IMAGE]}
    messages = [
        *said(text("Look.")),
        {"role": "assistant", "content": [call("a"), call("b")]},
        *said(shot, page, text("Well?")),
    ]
    request = converted(messages=messages, tools=[tool()])
    prompt = request.prompt(request.tool_use(), template_of(PLAIN))
    shown = [(each["role"], each["content"]) for each in prompt.messages[-3:]]
    assert shown == [
        ("tool", "The image is in the next message."),
        ("tool", "A page"),
        ("user", [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "Well?"}]),
    ]
    assert [each.field for each in prompt.images] == [
        "messages[2].content[0].content[0].source",
        "messages[2].content[1].content[1].source",
    ]


def test_tools_are_shown_to_the_model() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    ignored = {
        "type": "custom", "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True, "defer_loading": False,
        "input_examples": [{}], "allowed_callers": ["direct"],
    }  # fmt: skip
    tools = [{"name": "weather", "description": "d", "input_schema": schema, "strict": True, **ignored}, tool("g")]
    named = converted(tools=tools, tool_choice={"type": "tool", "name": "weather"}).tool_use()
    assert named.is_required
    assert [(each.name, each.parameters, each.strict) for each in named.offered] == [("weather", schema, True)]
    functions = [each["function"] for each in named.shown]
    assert functions[0] == {"name": "weather", "description": "d", "parameters": schema}
    assert functions[1] == {"name": "g", "parameters": tool()["input_schema"]}


def test_thinking_sets_the_templates_options() -> None:
    def options(source: str, **fields: Any) -> dict[str, object]:
        return converted(source, **fields).chat_template_kwargs

    enabled = {"type": "enabled", "budget_tokens": 1024}
    assert options(THINKING) == {}
    assert options(THINKING, thinking=enabled) == options(THINKING, thinking={"type": "adaptive"})
    assert options(THINKING, thinking=enabled) == {"enable_thinking": True}
    assert options(THINKING, thinking={"type": "disabled"}) == {"enable_thinking": False}
    own = {"enable_thinking": False, "x": 1}
    assert options(THINKING, thinking=enabled, chat_template_kwargs=own) == own
    assert options(EFFORT, thinking=enabled, output_config={"effort": "low"}) == {"reasoning_effort": "low"}
    harmony = EFFORT + "<|channel|>{{ messages[0].thinking }}"
    for effort, shown in (("low", "low"), ("high", "high"), ("max", "high")):
        assert options(harmony, output_config={"effort": effort}) == {"reasoning_effort": shown}
    for harmless in ({"thinking": {"type": "adaptive"}}, {"thinking": {"type": "disabled"}},
                     {"output_config": {"effort": "max"}}):  # fmt: skip
        assert options(PLAIN, **harmless) == {}
    assert converted(PLAIN, REASONING, thinking=enabled).chat_template_kwargs == {}
    with pytest.raises(FieldError, match="the model's chat template has no such option") as caught:
        options(PLAIN, thinking=enabled)
    assert caught.value.field == "thinking"


def test_how_reasoning_is_displayed() -> None:
    shows = {
        "summarized": (None, {"type": "adaptive"}, {"type": "enabled", "display": "summarized"}),
        "omitted": ({"type": "adaptive", "display": "omitted"},),
        "hidden": ({"type": "disabled"},),
    }
    for display, configs in shows.items():
        assert {read(thinking=each).display() for each in configs} == {display}


def test_a_schema_of_the_output() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    grammar = converted(output_config={"format": {"type": "json_schema", "schema": schema}}).grammar()
    assert grammar is not None
    assert (orjson.loads(grammar.source), grammar.is_open) == (schema, False)
    assert converted().grammar() is None


def test_fields_without_effect_are_accepted() -> None:
    ignored: dict[str, Any] = {
        "cache_control": {"type": "ephemeral", "ttl": "1h"}, "service_tier": "auto", "inference_geo": "eu",
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "mcp_servers": [],
        "diagnostics": {}, "speed": "fast", "output_config": {"task_budget": {"type": "tokens", "total": 20000}},
    }  # fmt: skip
    assert converted(**ignored) == converted()


def test_every_field_of_the_client_may_be_null() -> None:
    names = set(get_type_hints(message_create_params.MessageCreateParamsNonStreaming))
    headers = {"user_profile_id", "workspace_id"}  # the client sends them as such
    beta = {"compaction", "context_management", "fallbacks", "mcp_servers", "thread"}
    nulls: dict[str, Any] = dict.fromkeys(names - headers | beta)
    assert "thinking" in nulls
    assert converted(**{**nulls, "messages": HELLO, "max_tokens": 5}) == converted()


DEEP: dict[str, Any] = {"type": "string"}
for _ in range(40):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
BLOCK, UNKNOWN = "messages[0].content[0]", "Unrecognized request argument supplied"
TWO = [tool("f"), tool("g"), tool("f")]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": None}, "max_tokens", "valid integer"),
    ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
    ({"messages": []}, "messages", "at least 1 item"),
    ({"messages": None}, "messages", "valid list"),
    ({"messages": HELLO * 10_000}, "messages", "has 10000 messages"),
    ({"messages": said(*[text("a")] * 10_000)}, "messages", "has 10001 messages and blocks"),
    ({"messages": said({"type": "tool_result", "content": [text("")] * 9_000})}, "messages", "has 9002 messages"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role", "'user', 'assistant' or 'system'"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "Field required"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "a string or a list"),
    ({"messages": [None]}, "messages[0]", "valid dictionary"),
    ({"messages": [*HELLO, {"role": "assistant", "content": [IMAGE]}]}, "messages[1].content[0]",
     "image blocks do not belong in assistant messages"),
    ({"messages": said({"type": "image", "source": {"type": "file"}})}, f"{BLOCK}.source", "only base64, url"),
    ({"messages": said({"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": ""}})},
     f"{BLOCK}.source.media_type", "'image/png', 'image/jpeg', 'image/webp' or 'image/gif'"),
    ({"messages": said({"type": "document"})}, BLOCK, "document blocks are not supported here"),
    ({"messages": said("a")}, BLOCK, "must be an object with a type"),
    ({"messages": said({"text": "a"})}, BLOCK, "must be an object with a type"),
    ({"messages": said({"type": "text"})}, f"{BLOCK}.text", "Field required"),
    ({"messages": said(text("a", b=1))}, f"{BLOCK}.b", UNKNOWN),
    ({"messages": said({**text("a"), "<text>": 1})}, f"{BLOCK}.<text>", UNKNOWN),
    ({"messages": said({"type": "tool_result"})}, f"{BLOCK}.tool_use_id", "Field required"),
    ({"messages": said({"type": "tool_result", "tool_use_id": "x", "content": [call("x")]})}, f"{BLOCK}.content[0]",
     "tool_use blocks are not supported here, only text, image"),
    ({"messages": said({**call("x"), "input": "{}"})}, f"{BLOCK}.input", "valid dictionary"),
    ({"messages": said({f"x{number}": 1 for number in range(300)} | text("a"))}, BLOCK, "has 302 fields"),
    ({"system": [IMAGE]}, "system[0]", "image blocks are not supported here, only text"),
    ({"system": {}}, "system", "a string or a list"),
    ({"tools": [tool()] * 10_000}, "tools", "has 10000 entries, but at most 1024"),
    ({"tools": [tool(description="a" * MAX_TOOLS_BYTES)]}, "tools", "bytes, but at most 1048576"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]", "web_search_20250305 is not"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema", "Field required"),
    ({"tools": [tool("get weather")]}, "tools[0].name", "pattern"),
    ({"tools": [{"name": "f", "input_schema": {"type": "string"}}]}, "tools[0].input_schema", 'type "object"'),
    ({"tools": [{"name": "f", "input_schema": DEEP}]}, "tools[0].input_schema", "over 64 levels deep"),
    ({"tools": [tool(defer_loading=True)]}, "tools[0].defer_loading", "False"),
    ({"tools": TWO}, "tools[2].name", "f is also the name of tools[0]"),
    ({"tools": TWO[:2], "tool_choice": {"type": "tool", "name": "h"}}, "tool_choice.name", "no tool has the name 'h'"),
    ({"tools": TWO[:2], "tool_choice": {"type": "tool"}}, "tool_choice.name", "Field required"),
    ({"tools": TWO[:2], "tool_choice": {"type": "required"}}, "tool_choice", "'auto', 'any', 'tool', 'none'"),
    ({"tools": TWO[:2], "tool_choice": "auto"}, "tool_choice", "dictionary"),
    ({"tool_choice": {"type": "any"}}, "tool_choice", "the request has no tools"),
    ({"thinking": {"type": "between_tools"}}, "thinking.type", "'enabled', 'disabled' or 'adaptive'"),
    ({"thinking": True}, "thinking", "dictionary"),
    ({"stop_sequences": "a"}, "stop_sequences", "valid list"),
    ({"stop_sequences": ["a", ""]}, "stop_sequences[1]", "at least 1 character"),
    ({"temperature": "warm"}, "temperature", "valid number"),
    ({"output_config": {"effort": "some"}}, "output_config.effort", "'low'"),
    ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type", "'json_schema'"),
    ({"metadata": {"name": "a"}}, "metadata.name", UNKNOWN),
    ({"mcp_servers": [{}]}, "mcp_servers", "at most 0 items"),
    ({"stop": ["a"]}, "stop", "Use stop_sequences."),
    ({"max_completion_tokens": 3}, "max_completion_tokens", "Use max_tokens."),
    ({"n": 2}, "n", UNKNOWN),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "field", "message"), REFUSED)
def test_what_is_refused_under_which_name(fields: dict[str, Any], field: str, message: str) -> None:
    begun_s = time.thread_time()
    with pytest.raises(FieldError) as caught:
        converted(**fields)
    assert time.thread_time() - begun_s < 1
    assert caught.value.field == field
    assert message in str(caught.value)
    assert field in str(caught.value)


def test_max_tokens_is_required() -> None:
    with pytest.raises(FieldError, match="max_tokens: Field required"):
        read_body(MessagesRequest, orjson.dumps({"messages": HELLO}))


def test_a_body_may_not_be_nested_deeply() -> None:
    with pytest.raises(InvalidRequest, match="nested over 1024 levels deep"):
        read_body(CountTokensRequest, b'{"messages":' + b"[" * 100_000)


def test_inputs_of_earlier_calls_may_be_nested_deeply() -> None:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"a": deep}
    messages = [*HELLO, {"role": "assistant", "content": [call("1", **deep)]}, *HELLO]
    request = converted(messages=messages)
    assert request.prompt(request.tool_use(), template_of(PLAIN)).messages[1]["tool_calls"]


def test_a_response_of_the_client_can_be_sent_back() -> None:
    blocks = [
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {}},
    ]
    fields: Any = {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "content": blocks, "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip
    message = sdk.Message.model_validate(fields)
    sent = {"role": "assistant", "content": [block.model_dump(exclude_unset=True) for block in message.content]}
    assert converted(messages=[*HELLO, sent, *HELLO]).messages[1]["role"] == "assistant"
