"""Values of XML-like parameters as JSON, by the schemas of the tools."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson

from baton.router.parsing.base import Tool
from baton.router.parsing.tool_formats.python_literals import to_json

ANY_TYPE = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
COMBINED = ("anyOf", "oneOf", "allOf")
RESTRICTIONS = frozenset({"pattern", "format", "minLength", "maxLength"})
MAX_DEPTH = 8  # of schemas in `anyOf` and the like


@dataclass(frozen=True, slots=True)
class ValueType:
    """JSON types that a schema allows for a value."""

    types: frozenset[str]  # of JSON
    choices: frozenset[str] = frozenset()  # if it lists strings; white space around them does not belong to the value
    is_padded: bool = False  # the schema restricts strings: grammars allow white space around those, as around numbers


ANY = ValueType(ANY_TYPE)


def parameter_type(tool: Tool | None, parameter: str) -> ValueType:
    """Return what the tool's schema allows for a parameter; anything if it does not say."""
    properties = tool.parameters.get("properties") if tool is not None else None
    schema = properties.get(parameter) if isinstance(properties, Mapping) else None
    if not isinstance(schema, Mapping):
        return ANY
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    choices = [each for each in values if isinstance(each, str)] if isinstance(values, list) else []
    return ValueType(_types(schema, MAX_DEPTH), frozenset(choices), _restricts_text(schema, MAX_DEPTH))


def _restricts_text(schema: object, depth: int) -> bool:
    if not isinstance(schema, Mapping) or not depth:
        return False
    options = [each for name in COMBINED if isinstance(schema.get(name), list) for each in schema[name]]
    return not RESTRICTIONS.isdisjoint(schema) or any(_restricts_text(each, depth - 1) for each in options)


def _types(schema: object, depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or not depth:
        return ANY_TYPE
    declared = schema.get("type")
    if declared is not None:
        names = declared if isinstance(declared, list) else [declared]
        return frozenset(name for name in names if isinstance(name, str)) & ANY_TYPE or ANY_TYPE
    for name in COMBINED:
        options = schema.get(name)
        if isinstance(options, list) and options:
            return frozenset[str]().union(*(_types(option, depth - 1) for option in options))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        return frozenset(map(_type_of, values))
    return ANY_TYPE


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) else "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


class ValueWriter:
    """A parameter's value, which is passed on as JSON: strings as they arrive, other values at their end.

    A value that may be of several types is JSON of one of them if it can be, and otherwise a string.
    """

    def __init__(self, write: Callable[[str], None], value_type: ValueType, trims_lines: bool) -> None:
        """`trims_lines`: a line break at the beginning, and one at the end, do not belong to the value."""
        self._write = write
        self._types = value_type.types
        self._choices = value_type.choices
        self._is_padded = value_type.is_padded
        self._trims_lines = trims_lines
        self._is_string = value_type.types == {"string"} and not (value_type.choices or value_type.is_padded)
        self._texts: list[str] = []  # of a value that is passed on at its end
        self._is_begun = False
        self._held = ""  # a line break that may be the last
        if self._is_string:
            write('"')

    def add(self, text: str) -> None:
        """Add text of the value."""
        if not self._is_string:
            self._texts.append(text)
            return
        if self._trims_lines and not self._is_begun:
            text = text.removeprefix("\n")
        self._is_begun = True
        text = self._held + text
        self._held = "\n" if self._trims_lines and text.endswith("\n") else ""
        if self._held:
            text = text[:-1]
        if text:
            self._write(_escaped(text))

    def end(self) -> None:
        """End the value."""
        self._write('"' if self._is_string else self._json("".join(self._texts)))

    def cut(self) -> None:
        """Pass on what is there of a value that has no end."""
        self._write(_escaped(self._held) if self._is_string else "".join(self._texts).strip())

    def _json(self, text: str) -> str:
        stripped = text.strip()
        if text not in self._choices and stripped in self._choices:
            return f'"{_escaped(stripped)}"'
        converted = _json_of_type(stripped, self._types) if self._types != {"string"} else None
        if converted is not None:
            return converted
        if self._is_padded:
            text = stripped
        elif self._trims_lines:
            text = text.removeprefix("\n").removesuffix("\n")
        return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _json_of_type(text: str, types: frozenset[str]) -> str | None:
    """Return the text as JSON of one of the types, strings apart; None if it is none."""
    for candidate in (text, to_json(text)):
        if candidate is None:
            continue
        try:
            value = orjson.loads(candidate)
        except ValueError:
            continue
        kind = _type_of(value)
        if kind in types or (kind == "integer" and "number" in types) or (kind == "string" and "string" not in types):
            return candidate
        if kind == "number" and "integer" in types and float(value).is_integer():
            return candidate
    return None
