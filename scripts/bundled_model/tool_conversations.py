"""Conversations with calls of tools, and with answers in JSON, from a seeded generator."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bundled_model import phrases
from bundled_model.tools import ASKS, RECORDS, TOOLS, VERBS, WORDS, Parameter, Tool, draw, type_of

Values = Mapping[str, str | int]
Message = dict[str, Any]
MAX_TOOLS = 3  # in a conversation
INVENTED = 0.3  # share of conversations with a tool that is made of words
RENAMED = 0.3  # share of the other tools that do not have their usual name


@dataclass(frozen=True, slots=True)
class Named:
    """A tool as it appears in one conversation."""

    tool: Tool
    name: str
    keys: Mapping[str, str]  # name of each parameter

    @classmethod
    def of(cls, tool: Tool, rng: random.Random) -> "Named":
        """Draw the names: they can only be read in the description of the tool."""
        name, word = tool.name, rng.choice(WORDS)
        if not tool.is_invented and rng.random() < RENAMED:
            name = rng.choice((f"{name}_{word}", f"{word}_{name}", f"{rng.choice(VERBS)}_{word}"))
        number = rng.choice((0, 0, 1, 2))  # the same for all parameters, so that they belong together
        return cls(tool, name, {key: each.names[number % len(each.names)] for key, each in tool.parameters.items()})

    def description(self, rng: random.Random) -> dict[str, Any]:
        """Return the tool as a client sends it."""
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {self.keys[key]: {"type": type_of(each)} for key, each in self.tool.parameters.items()},
            "required": list(self.keys.values()),
        }
        if rng.random() < 0.3:
            schema["additionalProperties"] = False
        function = {"name": self.name, "description": self.tool.description, "parameters": schema}
        if rng.random() < 0.2 and self.name == self.tool.name:
            del function["description"]
        return {"type": "function", "function": function}

    def call(self, values: Values) -> dict[str, Any]:
        """Return a call."""
        return {"function": {"name": self.name, "arguments": {name: values[key] for key, name in self.keys.items()}}}


@dataclass(frozen=True, slots=True)
class ToolChat:
    """A conversation with tools."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    is_invented: bool  # its tool has a name that is drawn from words


def build_tool_chats(num_chats: int, rng: random.Random) -> list[ToolChat]:
    """Return conversations, most of which call a tool."""
    return [_tool_chat(rng) for _ in range(num_chats)]


def build_json_chats(num_chats: int, rng: random.Random) -> list[list[Message]]:
    """Return questions whose answer is a JSON object."""
    return [_json_chat(rng) for _ in range(num_chats)]


def _tool_chat(rng: random.Random) -> ToolChat:
    is_invented = rng.random() < INVENTED
    tool = invented_tool(rng) if is_invented else rng.choice(TOOLS)
    others = rng.sample([each for each in TOOLS if each is not tool], rng.choice((0, 0, 1, MAX_TOOLS - 1)))
    wanted, *rest = [Named.of(each, rng) for each in (tool, *others)]
    rest = [each for each in rest if each.name != wanted.name]
    described = [each.description(rng) for each in (wanted, *rest)]
    rng.shuffle(described)
    messages: list[Message] = []
    if rng.random() < 0.15:
        messages.append({"role": "system", "content": rng.choice(phrases.SYSTEM_PROMPTS)})
    if rng.random() < 0.12:
        questions, answers = rng.choice(phrases.SMALL_TALK[:-1])  # the last ones need a tool
        messages.append({"role": "user", "content": rng.choice(questions)})
        messages.append({"role": "assistant", "content": rng.choice(answers)})
        if rng.random() < 0.5:
            return ToolChat(messages, described, is_invented)
    values = _values(tool.parameters, rng)
    messages.append({"role": "user", "content": rng.choice(tool.questions).format(**values)})
    messages.append({"role": "assistant", "content": "", "tool_calls": [wanted.call(values)]})
    if rng.random() < 0.6:
        result = {key: draw(each, rng) for key, each in tool.results.items()}
        messages.append({"role": "tool", "content": json.dumps(result)})
        messages.append({"role": "assistant", "content": tool.answer.format(**values, **result)})
    return ToolChat(messages, described, is_invented)


def invented_tool(rng: random.Random) -> Tool:
    """Return a tool whose name, parameter and value must all be read in the conversation."""
    verb, noun, key = rng.choice(VERBS), rng.choice(WORDS), rng.choice(WORDS)
    name = f"{verb}_{noun}"
    words = tuple(rng.sample(WORDS, 3))
    asks = (
        f"{verb.capitalize()} the {noun} with {key} {{value}}.", f"Use {name} with {key} {{value}}.",
        f"Call {name} for {{value}}.", f"Please {verb} the {noun} {{value}}.",
    )  # fmt: skip
    parameter = Parameter((key,), range(1, 1000) if rng.random() < 0.3 else words)
    return Tool(
        name,
        f"{verb.capitalize()} a {noun}.",
        {"value": parameter},
        asks,
        {"result": WORDS},
        "The result is {result}.",
        is_invented=True,
    )


def _json_chat(rng: random.Random) -> list[Message]:
    record = rng.choice(RECORDS)
    values = _values(record.fields, rng)
    names = {key: rng.choice(each.names) for key, each in record.fields.items()}
    keys = list(names)
    rng.shuffle(keys)
    listed = _listing([names[key] for key in keys])
    ask = rng.choice(ASKS)
    if "{keys}" not in ask:  # then they come in one order, under their usual names
        keys = list(names)
        names = {key: each.names[0] for key, each in record.fields.items()}
    question = ask.format(keys=listed, sentence=rng.choice(record.sentences).format(**values))
    answer = json.dumps({names[key]: values[key] for key in keys})
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _values(parameters: Mapping[str, Parameter], rng: random.Random) -> Values:
    """Draw a value of each parameter; two are different."""
    values: dict[str, str | int] = {}
    for key, each in parameters.items():
        while (value := draw(each.values, rng)) in values.values():
            continue
        values[key] = value
    return values


def _listing(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
