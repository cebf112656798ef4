"""Fields of tools and their calls: what is refused, and what the chat template gets."""

import time
from typing import Any

import orjson
import pytest

from baton.engine.errors import InvalidRequest
from baton.router.errors import FieldError
from baton.router.http.body_reader import read_body
from baton.router.openai.chat import ChatRequest
from baton.router.openai.messages import template_messages
from baton.router.openai.tools import MAX_TOOLS, MAX_TOOLS_BYTES
from baton.router.output.rules import NO_TOOLS
from baton.router.parsing.base import Tool

HELLO: Any = [{"role": "user", "content": "hello"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def read(**fields: Any) -> ChatRequest:
    return read_body(ChatRequest, orjson.dumps({"messages": HELLO, **fields}))


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


TOOLS = [tool("weather", parameters=CITY, strict=True, description=None), tool("time-zone_2.x", description="d")]
FIRST = "tools[0].function"
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [tool("f")] * 10_000}, "tools", "10000 entries, but at most 1024"),
    ({"tools": [tool("f", description="a" * MAX_TOOLS_BYTES)]}, "tools", "bytes, but at most 1048576"),
    ({"tools": {}}, "tools", "list"),
    ({"tools": [None]}, "tools[0]", ""),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type", "'function'"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type", "required"),
    ({"tools": [{"type": "function"}]}, FIRST, "required"),
    ({"tools": [tool("get weather")]}, f"{FIRST}.name", "pattern"),
    ({"tools": [tool("")]}, f"{FIRST}.name", "pattern"),
    ({"tools": [tool("a\n")]}, f"{FIRST}.name", "pattern"),
    ({"tools": [tool("a" * 65)]}, f"{FIRST}.name", "pattern"),
    ({"tools": [tool("f"), tool("g", parameters=[])]}, "tools[1].function.parameters", "dictionary"),
    ({"tools": [tool("f", parameters={"type": "string"})]}, f"{FIRST}.parameters", 'type "object"'),
    ({"tools": [tool("f", parameters=nested(40))]}, f"{FIRST}.parameters", "over 64 levels deep"),
    ({"tools": [tool("f", parameters=nested(120))]}, f"{FIRST}.parameters", "over 64 levels deep"),
    ({"tools": [tool("f", strict="yes")]}, f"{FIRST}.strict", "boolean"),
    ({"tools": [tool("f", examples=[])]}, f"{FIRST}.examples", "Unrecognized"),
    ({"tools": [tool("f"), tool("g"), tool("f")]}, "tools[2].function.name", "also the name of tools[0]"),
    ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "'required'"),
    ({"tools": TOOLS, "tool_choice": 5}, "tool_choice", "must be"),
    ({"tools": TOOLS, "tool_choice": named("g")}, "tool_choice.function.name", "no tool has the name 'g'"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function", "required"),
    ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice.type", ""),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tools": [], "tool_choice": named("f")}, "tool_choice.function.name", "no tool"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
        "tool_choice.allowed_tools.tools",
        "at least 1",
    ),
    (
        {
            "tools": TOOLS,
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("g")]}},
        },
        "tool_choice.allowed_tools.tools[0].function.name",
        "no tool",
    ),
    ({"functions": [{"name": "f"}]}, "functions", "not supported"),
    ({"function_call": {"name": "f"}}, "function_call", "not supported"),
]


@pytest.mark.parametrize(("fields", "param", "message"), REFUSED)
def test_bad_tools_are_refused_by_name(fields: dict[str, Any], param: str, message: str) -> None:
    content = orjson.dumps({"messages": HELLO, **fields})
    begun_s = time.perf_counter()
    with pytest.raises(FieldError) as caught:
        read_body(ChatRequest, content).tool_use()
    assert time.perf_counter() - begun_s < 1
    assert caught.value.field == param
    assert message in str(caught.value)


def test_as_many_tools_as_are_accepted() -> None:
    tools = read(tools=[tool(f"f{number}") for number in range(MAX_TOOLS)]).tool_use()
    assert len(tools.offered) == len(tools.shown) == MAX_TOOLS


def test_without_a_choice_the_model_may_call_any_tool() -> None:
    for choice in ({}, {"tool_choice": "auto"}, {"tool_choice": None}):
        use = read(tools=TOOLS, **choice).tool_use()
        assert use.offered == (
            Tool(name="weather", parameters=CITY, strict=True),
            Tool(name="time-zone_2.x", parameters={}),
        )
        assert (use.is_required, use.is_limited, use.is_parallel) == (False, False, True)


def test_the_template_gets_tools_in_the_clients_order_without_what_does_not_describe_them() -> None:
    use = read(tools=[{"function": {"description": "d", "name": "f", "strict": True}, "type": "function"}]).tool_use()
    assert orjson.dumps(use.shown) == b'[{"type":"function","function":{"description":"d","name":"f"}}]'


NONE: list[dict[str, Any]] = [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}, {"tool_choice": "auto"}]


@pytest.mark.parametrize("fields", NONE)
def test_no_tools(fields: dict[str, Any]) -> None:
    assert read(**fields).tool_use() == NO_TOOLS


def test_choices_that_limit_the_tools() -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("time-zone_2.x")]}}
    for choice in (named("time-zone_2.x"), allowed):
        use = read(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False).tool_use()
        assert [each.name for each in use.offered] == ["time-zone_2.x"]
        assert use.fields == ("tools[1].function.parameters",)
        assert len(use.shown) == 2
        assert (use.is_required, use.is_limited, use.is_parallel) == (True, True, False)
    allowed["allowed_tools"] = {"mode": "auto", "tools": [named("weather")]}
    use = read(tools=TOOLS, tool_choice=allowed).tool_use()
    assert (use.is_required, use.is_limited) == (False, True)
    assert read(tools=TOOLS, tool_choice="required").tool_use().is_required


def called(arguments: object, call_id: str | None = "c1", **fields: Any) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}, **fields}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": {"b": [1]}}', {"a": {"b": [1]}}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (" ", {}),
        ("[1, 2]", "[1, 2]"),
        ("null", "null"),
    ],
)
def test_the_template_gets_arguments_as_objects(arguments: object, shown: object) -> None:
    [message] = template_messages(read(messages=[called(arguments, index=0)]).messages)
    [call] = message["tool_calls"]  # type: ignore[misc]  # a list
    assert message["content"] == ""
    assert call == {"id": "c1", "type": "function", "function": {"name": "f", "arguments": shown}, "index": 0}


BAD_MESSAGES: list[tuple[list[Any], str, str]] = [
    ([called('{"a": ')], "messages[0].tool_calls[0].function.arguments", "valid JSON"),
    ([called("call me")], "messages[0].tool_calls[0].function.arguments", "valid JSON"),
    ([called("[" * 100_000)], "messages[0].tool_calls[0].function.arguments", "valid JSON"),
    ([called(5)], "messages[0].tool_calls[0].function.arguments", "string"),
    ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls", "list"),
    ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "messages[0].tool_calls[0].function", "required"),
    ([called("{}", type="custom")], "messages[0].tool_calls[0].type", "'function'"),
    ([{"role": "tool", "tool_call_id": "c1", "content": "a"}], "messages[0].tool_call_id", "no earlier message"),
    (
        [called("{}"), {"role": "tool", "tool_call_id": "c2", "content": "a"}],
        "messages[1].tool_call_id",
        "with the id 'c2'",
    ),
    (
        [{"role": "tool", "tool_call_id": "c1", "content": "a"}, called("{}")],
        "messages[0].tool_call_id",
        "no earlier message",
    ),
]


@pytest.mark.parametrize(("messages", "param", "message"), BAD_MESSAGES)
def test_bad_calls_and_results_are_refused_by_their_place(messages: list[Any], param: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        template_messages(read(messages=messages).messages)
    assert isinstance(caught.value, FieldError)
    assert caught.value.field == param
    assert message in str(caught.value)


def test_results_belong_to_calls_and_may_lack_an_id() -> None:
    messages = [
        *HELLO,
        called("{}"),
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "7"}]},
        {"role": "tool", "name": "f", "content": "8"},
        {"role": "assistant", "content": "7", "tool_calls": []},
    ]
    shown = template_messages(read(messages=messages).messages)
    assert shown[2] == {"role": "tool", "content": "7", "tool_call_id": "c1"}
    assert shown[3] == {"role": "tool", "content": "8", "name": "f"}
    assert shown[4] == {"role": "assistant", "content": "7"}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_the_template_gets_earlier_reasoning_under_both_names(name: str) -> None:
    [message] = template_messages(read(messages=[{"role": "assistant", "content": "a", name: "because"}]).messages)
    assert message["reasoning"] == message["reasoning_content"] == "because"
