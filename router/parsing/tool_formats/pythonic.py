"""Calls as a Python list: Llama 4 and Llama 3.2.

    [f(x=1, y="a"), g()]
    <|python_start|>[f(x=1)]<|python_end|>

The list comes at the beginning of the output, or after `<|python_start|>`. Each argument is passed on as JSON when it
is complete. Text after the list is content.
"""

import json
import re
from collections.abc import Mapping, Sequence

from baton.router.parsing.base import Tool
from baton.router.parsing.lexer import Lexer, NotACall, Reading
from baton.router.parsing.structural_tag import Format, any_of, any_text, const, optional, regex, sequence, star
from baton.router.parsing.tool_format import CallReading, ToolFormat
from baton.router.parsing.tool_formats.python_literals import to_json

BEGIN, END = "<|python_start|>", "<|python_end|>"
NAME = re.compile(r"[\w.\-]*")
OUTSIDE = re.compile(r"""['"\[\](){},]""")
IN_STRING = {quote: re.compile(rf"[\\{quote}]") for quote in ("'", '"')}


class PythonicReader:
    """Reader of the calls in one output."""

    def __init__(self, reading: CallReading) -> None:
        self._lexer = reading.lexer
        self._writer = reading.writer

    def read(self, marker: str) -> Reading[frozenset[str]]:
        """Read the list after a marker, or at the beginning; see `ToolReader`."""
        lexer = self._lexer
        yield from lexer.skip()
        if not (yield from lexer.literal("[")):
            raise NotACall
        while (yield from self._call()):
            lexer.record("")
            yield from lexer.skip()
            if not (yield from lexer.literal(",")):
                yield from lexer.literal("]")
                lexer.recorded()
                break
        return frozenset({END})

    def _call(self) -> Reading[bool]:
        """Read a call, and return whether it is complete. Raises NotACall if no name and bracket come next."""
        lexer, writer = self._lexer, self._writer
        yield from lexer.skip()
        name = yield from lexer.run(NAME)
        if not name or not (name[0].isalpha() or name[0] == "_") or not (yield from lexer.literal("(")):
            raise NotACall
        lexer.recorded()
        writer.start_call(name)
        writer.arguments("{")
        is_complete = yield from self._arguments()
        if is_complete:
            writer.arguments("}")
        writer.end_call()
        return is_complete

    def _arguments(self) -> Reading[bool]:
        """Write the arguments, and return whether the closing bracket was read."""
        lexer, separator = self._lexer, ""
        while True:
            yield from lexer.skip()
            if (yield from lexer.literal(")")):
                return True
            if lexer.is_at_end:
                return False
            key = yield from lexer.run(NAME)
            yield from lexer.skip()
            if key and (yield from lexer.literal("=")):
                self._writer.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            else:
                self._writer.arguments(f"{separator}{key}")
            separator = ", "
            text, is_complete = yield from _expression(lexer)
            self._writer.arguments((to_json(text) if is_complete else None) or text)
            if not is_complete:
                return False
            yield from lexer.literal(",")


def _expression(lexer: Lexer) -> Reading[tuple[str, bool]]:
    """Read an expression, and return its text, and whether a comma or bracket that is not part of it follows."""
    texts: list[str] = []
    depth = 0
    while (yield from lexer.more()):
        match = OUTSIDE.search(lexer.text, lexer.start)
        if match is None:
            texts.append(lexer.take(len(lexer.text)))
            continue
        char = match.group()
        texts.append(lexer.take(match.start()))
        if not depth and char in ",)]}":
            return "".join(texts).strip(), char in ",)"
        texts.append(lexer.take(match.end()))
        if char in "[({":
            depth += 1
        elif char in "])}":
            depth -= 1
        elif char in IN_STRING:
            yield from _string(lexer, char, texts)
    return "".join(texts).strip(), False


def _string(lexer: Lexer, quote: str, texts: list[str]) -> Reading[None]:
    """Read the rest of a string."""
    while (yield from lexer.more()):
        match = IN_STRING[quote].search(lexer.text, lexer.start)
        texts.append(lexer.take(len(lexer.text) if match is None else match.end()))
        if match is None:
            continue
        if match.group() == quote:
            return
        if (yield from lexer.more()):
            texts.append(lexer.take(lexer.start + 1))


MAX_ORDERED = 8  # optional arguments in the schema's order, as that takes a part for each pair; more come in any order


def _calls(tools: Sequence[Tool], required: bool, parallel: bool) -> Format:
    call = any_of([_call_format(each, required) for each in tools])
    more = star(sequence(const(", "), call))
    calls = sequence(const("["), call, *([more] if parallel else []), const("]"))
    return calls if required else any_of([calls, sequence(regex(r"[^\[<\s]"), any_text([BEGIN]))])


def _call_format(tool: Tool, required: bool) -> Format:
    """Return the format of a call, with values in JSON, and required arguments first."""
    schema = tool.parameters
    properties = schema.get("properties")
    if not (required or tool.strict) or not isinstance(properties, Mapping) or not properties:
        argument = sequence(regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}="), {"type": "json_schema", "json_schema": True})
        more = star(sequence(const(", "), argument))
        parts = [optional(sequence(argument, more))] if properties or not required else []
        return sequence(const(f"{tool.name}("), *parts, const(")"))
    named = schema.get("required")
    first = [key for key in dict.fromkeys(named) if key in properties] if isinstance(named, list) else []
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    values = {
        key: sequence(const(f"{key}="), {"type": "json_schema", "json_schema": _with(definitions, value)})
        for key, value in properties.items()
    }
    others = [key for key in values if key not in first]
    if first:
        parts = [sequence(const(", "), values[key]) for key in first[1:]]
        parts += [optional(sequence(const(", "), values[key])) for key in others]
        return sequence(const(f"{tool.name}("), values[first[0]], *parts, const(")"))
    if len(others) > MAX_ORDERED:
        argument = any_of(list(values.values()))
        parts = [optional(sequence(argument, star(sequence(const(", "), argument))))]
        return sequence(const(f"{tool.name}("), *parts, const(")"))
    options = [
        sequence(values[key], *(optional(sequence(const(", "), values[after])) for after in others[place + 1 :]))
        for place, key in enumerate(others)
    ]
    return sequence(const(f"{tool.name}("), optional(any_of(options)), const(")"))


def _with(definitions: Mapping[str, object], schema: object) -> object:
    return {**schema, **definitions} if isinstance(schema, Mapping) else schema


PYTHONIC = ToolFormat(begins=(BEGIN,), ends=(END,), at_beginning=True, reader=PythonicReader, calls=_calls)
