"""Messages and tools as the chat template of GPT-OSS reads them.

That template shows the reasoning of `thinking`, one call a message, and results under the name of the call in front of
them. It rejects text next to both reasoning and a call, and tools without a description. Instructions anywhere but in
the first message are not rendered at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

Message = Mapping[str, Any]
INSTRUCTIONS = frozenset({"system", "developer"})  # roles
REASONING = ("thinking", "reasoning_content", "reasoning")  # names, that of the template first
EFFORTS = ("low", "medium", "high")  # of reasoning
MARKS = ("<|channel|>", "thinking")  # are in such a template


def is_harmony(template: str) -> bool:
    """Return whether a chat template, a Jinja source, reads messages like that of GPT-OSS."""
    return all(mark in template for mark in MARKS)


def harmony_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with nothing that the template would drop or reject.

    Instructions at the beginning become one message, and later ones messages of the user. Calls of one message become
    messages of their own, each in front of its results. Text next to calls is reasoning, as in the template.
    """
    first = list(takewhile(_has_instructions, messages))
    shown: list[Message] = []
    if first:
        shown.append({**first[0], "content": "\n\n".join(each["content"] for each in first)})
    place = len(first)
    while place < len(messages):
        message, end = messages[place], place + 1
        if message.get("role") == "assistant":
            while message.get("tool_calls") and end < len(messages) and messages[end].get("role") == "tool":
                end += 1
            shown += _turn(message, messages[place + 1 : end])
        else:
            shown.append({**message, "role": "user"} if _has_instructions(message) else message)
        place = end
    return shown


def described(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool whose function has a description, which may be empty."""
    return {**tool, "function": {"description": "", **tool["function"]}}


def _has_instructions(message: Message) -> bool:
    return message.get("role") in INSTRUCTIONS


def _turn(message: Message, results: Sequence[Message]) -> Iterator[Message]:
    """Yield a message of the assistant, each of its calls with the call's results behind it."""
    reasoning = next((message[name] for name in REASONING if message.get(name)), None)
    shown = {name: value for name, value in message.items() if name not in REASONING}
    calls = message.get("tool_calls")
    if not calls:
        yield {**shown, **_reasoning(reasoning)}
        return
    text = message["content"]
    first = f"{reasoning}\n{text}" if reasoning and text else reasoning or text
    places = {call["id"]: place for place, call in enumerate(calls) if "id" in call}
    results_of: list[list[Message]] = [[] for _ in calls]
    for place, result in enumerate(results):  # without an id, they are in the order of the calls
        results_of[places.get(result.get("tool_call_id", ""), min(place, len(calls) - 1))].append(result)
    for place, call in enumerate(calls):
        yield {**shown, "content": "", "tool_calls": [call], **_reasoning(None if place else first)}
        yield from results_of[place]


def _reasoning(reasoning: object) -> Message:
    return dict.fromkeys(REASONING[:2], reasoning) if reasoning else {}
