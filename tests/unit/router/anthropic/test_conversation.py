"""Messages for the chat template: order, results of tools, reasoning, and what cannot be converted."""

from typing import Any

import pytest

from baton.router.errors import FieldError
from tests.unit.router.anthropic.conversion import HELLO, call, converted, result, shown, text

USER, ASSISTANT = "user", "assistant"


def turn(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def test_texts() -> None:
    plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    assert shown(system="Be brief.") == plain
    assert shown(system=[text("Be", cache_control={"type": "ephemeral"}), text("brief.")])[0]["content"] == "Be\nbrief."
    assert shown(messages=[turn(USER, text("hello", citations=None))]) == plain[1:]
    assert shown(messages=[turn(USER)]) == [{"role": "user", "content": ""}]
    assert shown(messages=[*HELLO, {"role": "system", "content": "s"}, *HELLO])[1] == {"role": "system", "content": "s"}


def test_a_billing_header_is_not_in_the_prompt() -> None:
    billing = text("x-anthropic-billing-header: cc_version=2.0; cch=1a2b3;")
    assert shown(system=[billing, text("You are Claude Code.")])[0]["content"] == "You are Claude Code."
    assert shown(system=[billing]) == HELLO


def test_adjacent_turns_of_one_role_are_one() -> None:
    messages = [*HELLO, turn(USER, text("a"), text("b")), turn(ASSISTANT, text("c")), turn(ASSISTANT, call("1")),
                turn(USER, result("1"))]  # fmt: skip
    assert [each["content"] for each in shown(messages=messages)] == ["hello\na\nb", "c", "done"]


def test_results_become_messages_in_order() -> None:
    given = {"city": "Oslo", "deep": [{"a": 1}]}
    messages = [
        *HELLO,
        turn(ASSISTANT, text("I look."), call("toolu_1", "weather", **given), call("toolu_2", "clock")),
        turn(
            USER, text("first"), result("toolu_2", [text("12"), text("h")]), result("toolu_1", "rain"), text("Thanks.")
        ),
    ]
    found = shown(messages=messages)
    assert found[1] == {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": given}},
            {"id": "toolu_2", "type": "function", "function": {"name": "clock", "arguments": {}}},
        ],
    }
    assert found[2:] == [
        {"role": "user", "content": "first"},
        {"role": "tool", "content": "12\nh", "tool_call_id": "toolu_2", "name": "clock"},
        {"role": "tool", "content": "rain", "tool_call_id": "toolu_1", "name": "weather"},
        {"role": "user", "content": "Thanks."},
    ]


def test_results_that_are_errors_or_empty() -> None:
    def content(**more: Any) -> str:
        block = {"type": "tool_result", "tool_use_id": "1", **more}
        found: str = shown(messages=[*HELLO, turn(ASSISTANT, call("1")), turn(USER, block)])[-1]["content"]
        return found

    assert content() == content(content="") == content(content=[]) == ""
    assert content(content="no such city", is_error=True) == "Error: no such city"
    assert content(content="Error: no such city", is_error=True) == "Error: no such city"
    assert content(is_error=True) == "Error: "


def test_reasoning_of_earlier_responses() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "any"}
    redacted = {"type": "redacted_thinking", "data": "0f"}
    found = shown(messages=[*HELLO, turn(ASSISTANT, thought, redacted, text("Hi.")), *HELLO])
    assert found[1] == {"role": "assistant", "content": "Hi.", "reasoning": "Hm.", "reasoning_content": "Hm."}


def test_the_assistants_last_message_is_continued() -> None:
    request = converted(messages=[*HELLO, {"role": "assistant", "content": "The best answer is ("}])
    assert request.continue_final_message
    assert not request.add_generation_prompt
    assert not converted().continue_final_message


UNKNOWN = "no earlier message has a tool_use block with the id 'x'"
REFUSED: list[tuple[list[Any], str, str]] = [
    ([*HELLO, turn(USER, text("a"), result("x"))], "messages[1].content[1].tool_use_id", UNKNOWN),
    ([*HELLO, turn(USER, result("x")), turn(ASSISTANT, call("x"))], "messages[1].content[0].tool_use_id", UNKNOWN),
    ([turn(USER, call("x"))], "messages[0].content[0]", "tool_use blocks do not belong in user messages"),
    ([*HELLO, turn(ASSISTANT, call("x"), result("x"))], "messages[1].content[1]", "do not belong in assistant"),
    ([turn(USER, {"type": "thinking", "thinking": ""})], "messages[0].content[0]", "do not belong in user"),
    ([*HELLO, turn("system", {"type": "redacted_thinking", "data": ""})], "messages[1].content[0]", "in system"),
    ([*HELLO, turn(ASSISTANT, text("a"), call("x"))], "messages", "results of the last message's tool_use blocks"),
    ([*HELLO, turn(ASSISTANT)], "messages", "no text to continue"),
    ([*HELLO, {"role": "assistant", "content": " "}], "messages", "no text to continue"),
]


@pytest.mark.parametrize(("messages", "field", "message"), REFUSED)
def test_what_cannot_be_converted_is_refused(messages: list[Any], field: str, message: str) -> None:
    with pytest.raises(FieldError) as caught:
        shown(messages=messages)
    assert caught.value.field == field
    assert str(caught.value).startswith(field)
    assert message in str(caught.value)
