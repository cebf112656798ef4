"""Messages and tools as the chat template of GPT-OSS reads them.

That template shows the reasoning of `thinking`, one call a message, and results under the name of the call in front of
them. It rejects text next to both reasoning and a call, tools without a description, and defaults of choices that are
no strings. It shows neither instructions anywhere but in the first message, nor messages of functions. For each call
it goes through all later messages.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import Any

Message = Mapping[str, Any]
INSTRUCTIONS = frozenset({"system", "developer"})  # roles
RESULTS = frozenset({"tool", "function"})  # roles
REASONING = ("thinking", "reasoning_content", "reasoning")  # names, that of the template first
EFFORTS = ("low", "medium", "high")  # of reasoning
MARKS = ("<|channel|>", "thinking")  # are in such a template
MAX_STEPS = 1 << 21  # calls times messages, which take the template some seconds


@dataclass(slots=True)
class _Calls:
    """Calls so far, each in a list to which its results are added."""

    latest: Sequence[list[Message]] = ()  # of the last message of the assistant
    by_id: dict[str, list[list[Message]]] = field(default_factory=dict)

    def add(self, calls: Sequence[Message], lists: Sequence[list[Message]]) -> None:
        """Add a message of the assistant with these calls; lists: the messages that show them."""
        self.latest = lists if calls else ()
        ids: dict[str, list[list[Message]]] = {}
        for call, shown in zip(calls, lists, strict=False):
            if "id" in call:
                ids.setdefault(call["id"], []).append(shown)
        self.by_id |= ids

    def list_for(self, result: Message) -> list[Message] | None:
        """Return the list of a result's call; without a known id, that of the first call without a result."""
        lists = self.by_id.get(result.get("tool_call_id", ""), self.latest)
        return next((each for each in lists if len(each) == 1), lists[-1] if lists else None)


def is_harmony(template: str) -> bool:
    """Return whether a chat template, a Jinja source, reads messages like that of GPT-OSS."""
    return all(mark in template for mark in MARKS)


def harmony_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with nothing that the template would drop or reject.

    Instructions at the beginning become one message, and later ones messages of the user. Each call of a message
    becomes a separate message in front of its results, wherever these are. Text next to calls is reasoning, as in the
    template. Raises ValueError for so many calls that the template would take minutes.
    """
    num_calls = sum(len(message.get("tool_calls") or ()) for message in messages)
    if num_calls * (len(messages) + num_calls) > MAX_STEPS:
        raise ValueError(f"{num_calls} calls of tools in {len(messages)} messages are too many; leave out early ones")
    first = list(takewhile(_has_instructions, messages))
    lists: list[list[Message]] = []
    if first:
        lists.append([{**first[0], "content": "\n\n".join(each["content"] for each in first)}])
    calls = _Calls()
    for message in messages[len(first) :]:
        role = message.get("role")
        if role == "assistant":
            turn = [[each] for each in _turn(message)]
            calls.add(message.get("tool_calls") or (), turn)
            lists += turn
        elif role in RESULTS:
            result = {**message, "role": "tool"}
            if (shown := calls.list_for(result)) is not None:
                shown.append(result)
            else:
                lists.append([result])
        else:
            lists.append([{**message, "role": "user"} if _has_instructions(message) else message])
    return list(chain.from_iterable(lists))


def described(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool whose function has a description, which may be empty, and only texts as defaults of choices."""
    function = {"description": "", **tool["function"]}
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties")
    if isinstance(properties, dict):
        shown = {name: _with_text_default(each) for name, each in properties.items()}
        function["parameters"] = {**parameters, "properties": shown}
    return {**tool, "function": function}


def _with_text_default(schema: object) -> object:
    if not isinstance(schema, dict) or isinstance(schema.get("default", ""), str):
        return schema
    has_choices = schema.get("enum") or schema.get("oneOf")
    return {**schema, "default": json.dumps(schema["default"])} if has_choices else schema


def _has_instructions(message: Message) -> bool:
    return message.get("role") in INSTRUCTIONS


def _turn(message: Message) -> list[Message]:
    """Return a message of the assistant; with calls, a message for each of them."""
    name = next((name for name in REASONING if message.get(name)), REASONING[0])
    reasoning = message.get(name)
    if not isinstance(reasoning, str | None):
        raise ValueError(f"{name} must be a text")
    shown = {name: value for name, value in message.items() if name not in REASONING}
    calls = message.get("tool_calls")
    if not calls:
        return [{**shown, **_reasoning(reasoning)}]
    text = message["content"]
    first = f"{reasoning}\n{text}" if reasoning and text else reasoning or text
    return [
        {**shown, "content": "", "tool_calls": [call], **_reasoning(None if place else first)}
        for place, call in enumerate(calls)
    ]


def _reasoning(reasoning: object) -> Message:
    return dict.fromkeys(REASONING[:2], reasoning) if reasoning else {}
