"""Prompts of a chat template that reads messages as GPT-OSS's does: nothing is dropped, and no message is rejected."""

from typing import Any

import pytest

from baton.engine.errors import InvalidRequest
from baton.router.errors import FieldError
from baton.router.text.harmony_messages import harmony_messages, is_harmony
from tests.unit.router.anthropic.conversion import PLAIN, template_of

# The properties of GPT-OSS's template that matter, in a short form of it.
TEMPLATE = """
{%- for tool in tools or [] %}{{ "//" + tool.function.description + tool.function.name }};{% endfor %}
{%- set called = namespace(name=none) %}
{%- for message in messages %}
{%- if message.role in ("system", "developer") %}{% if loop.first %}<|start|>developer {{ message.content }}{% endif %}
{%- elif message.role == "tool" %}
{%- if called.name is none %}{{ raise_exception("no call in front of a result") }}{% endif -%}
<|start|>{{ called.name }}<|channel|>commentary<|message|>{{ message.content | tojson }}
{%- elif message.role == "assistant" and "tool_calls" in message %}
{%- if message.content and message.thinking %}{{ raise_exception("both content and thinking") }}{% endif %}
{%- if message.content or message.thinking -%}
<|start|>assistant<|channel|>analysis<|message|>{{ message.content or message.thinking }}
{%- endif %}
{%- set called.name = message.tool_calls[0].function.name -%}
<|start|>assistant to={{ called.name }}<|message|>{{ message.tool_calls[0].function.arguments | tojson }}
{%- elif message.role == "assistant" %}
{%- if "thinking" in message and "<|channel|>" in message.thinking %}{{ raise_exception("tags") }}{% endif %}
{%- set called.name = none -%}
<|start|>assistant<|message|>{{ message.content }}
{%- else %}<|start|>{{ message.role }}<|message|>{{ message.content }}{% endif %}
{%- endfor %}
"""
USER = {"role": "user", "content": "Hi"}


def call(name: str, call_id: str | None = None, **arguments: object) -> dict[str, Any]:
    shown = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return shown if call_id is None else {"id": call_id, **shown}


def calling(*calls: dict[str, Any], content: str = "", **fields: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **fields}


def result(content: str, call_id: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "content": content} | ({} if call_id is None else {"tool_call_id": call_id})


def rendered(*messages: dict[str, Any], tools: Any = (), template: str = TEMPLATE) -> str:
    return template_of(template).render(messages, True, False, {}, tools).replace("<|start|>", "\n").strip()


def test_reasoning_and_text_next_to_a_call_are_analysis() -> None:
    text = rendered(USER, calling(call("f", x=1), reasoning_content="Hm.", reasoning="Hm."), result("5"))
    assert text.splitlines() == [
        "user<|message|>Hi",
        "assistant<|channel|>analysis<|message|>Hm.",
        'assistant to=f<|message|>{"x": 1}',
        'f<|channel|>commentary<|message|>"5"',
    ]
    both = rendered(USER, calling(call("f"), content="I call.", reasoning_content="Hm."))
    assert both.splitlines()[1:3] == ["assistant<|channel|>analysis<|message|>Hm.", "I call."]
    only_text = rendered(USER, calling(call("f"), content="I call."))
    assert only_text.splitlines()[1] == "assistant<|channel|>analysis<|message|>I call."


@pytest.mark.parametrize("ids", [("a", "b"), (None, None)])
def test_calls_of_one_message_are_each_in_front_of_their_results(ids: tuple[str | None, str | None]) -> None:
    calls = calling(call("f", ids[0]), call("g", ids[1]), reasoning_content="Hm.")
    results = [result("of f", ids[0]), result("of g", ids[1])]
    expected = [
        "user<|message|>Hi",
        "assistant<|channel|>analysis<|message|>Hm.",
        "assistant to=f<|message|>{}",
        'f<|channel|>commentary<|message|>"of f"',
        "assistant to=g<|message|>{}",
        'g<|channel|>commentary<|message|>"of g"',
        "assistant<|message|>Bye",
    ]
    end = {"role": "assistant", "content": "Bye"}
    assert rendered(USER, calls, *results, end).splitlines() == expected
    if ids[0] is not None:
        assert rendered(USER, calls, *reversed(results), end).splitlines() == expected


def test_no_result_is_lost() -> None:
    calls = calling(call("f", "a"), call("g", "b"))
    messages = harmony_messages([calls, result("1", "a"), result("2", "earlier"), result("3", "b"), result("4")])
    assert sorted(each["content"] for each in messages if each["role"] == "tool") == ["1", "2", "3", "4"]
    assert [len(each["tool_calls"]) for each in messages if each["role"] == "assistant"] == [1, 1]


def test_instructions_are_shown_wherever_they_are() -> None:
    system, developer = {"role": "system", "content": "A"}, {"role": "developer", "content": "B"}
    assert rendered(system, USER).splitlines() == ["developer A", "user<|message|>Hi"]
    assert rendered(system, developer, USER).splitlines() == ["developer A", "", "B", "user<|message|>Hi"]
    assert rendered(system, USER, developer).splitlines()[1:] == ["user<|message|>Hi", "user<|message|>B"]


def test_a_tool_needs_no_description() -> None:
    tools = [
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "function": {"name": "g", "description": "Tells. "}},
    ]
    assert rendered(USER, tools=tools).splitlines()[0] == "//f;//Tells. g;"


def test_reasoning_of_a_finished_turn() -> None:
    answer = {"role": "assistant", "content": "Yes", "reasoning_content": "Hm."}
    for other in ({**answer, "reasoning": "Hm."}, {"role": "assistant", "content": "Yes", "reasoning": "Hm."}):
        assert harmony_messages([USER, other]) == [USER, {**answer, "thinking": "Hm."}]
    assert harmony_messages([{**answer, "thinking": "Own"}])[0]["thinking"] == "Own"
    absent = {"role": "assistant", "content": "Yes", "reasoning_content": None, "thinking": None}
    assert "thinking" not in harmony_messages([absent])[0]
    assert rendered(USER, absent, USER).splitlines()[1] == "assistant<|message|>Yes"
    with pytest.raises(InvalidRequest, match="rejects the messages: tags"):
        rendered({**answer, "thinking": "<|channel|>"})


def test_efforts_that_the_model_does_not_know_are_refused() -> None:
    for effort in ("low", "medium", "high", None):
        template_of(TEMPLATE).check({"reasoning_effort": effort})
    for effort in ("none", "minimal", "max", ["low"]):
        with pytest.raises(FieldError, match="reasoning_effort must be low, medium or high with this model"):
            template_of(TEMPLATE).check({"reasoning_effort": effort})
        template_of(PLAIN).check({"reasoning_effort": effort})


def test_other_templates_get_the_messages_unchanged() -> None:
    assert is_harmony(TEMPLATE)
    assert not is_harmony(PLAIN + "{{ messages[0].thinking }}")
    system = {"role": "system", "content": "A"}
    assert rendered(system, system, calling(call("f"), content="B"), template=PLAIN) == "AAB"
