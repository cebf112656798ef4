"""Structural tags in xgrammar's JSON, which make a model write valid calls."""

import json
from collections.abc import Iterable, Mapping, Sequence

from baton.router.parsing.base import Tool

Format = dict[str, object]  # a part of a structural tag

ANY_OBJECT: Mapping[str, object] = {"type": "object"}


def const(text: str) -> Format:
    """Return a format that matches the text."""
    return {"type": "const_string", "value": text}


def sequence(*elements: Format) -> Format:
    """Return a format that matches the elements one after the other."""
    return {"type": "sequence", "elements": list(elements)}


def optional(content: Format) -> Format:
    """Return a format that matches the content or nothing."""
    return {"type": "optional", "content": content}


def star(content: Format) -> Format:
    """Return a format that matches the content any number of times."""
    return {"type": "star", "content": content}


def any_of(elements: Sequence[Format]) -> Format:
    """Return a format that matches one of the elements."""
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def any_text(excludes: Iterable[str] = ()) -> Format:
    """Return a format that matches texts without these strings."""
    return {"type": "any_text", "excludes": list(excludes)}


def regex(pattern: str) -> Format:
    """Return a format that matches the regular expression."""
    return {"type": "regex", "pattern": pattern}


def tagged(begin: str, content: Format, end: str) -> Format:
    """Return a format that matches the content between two texts."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def json_name(tool: Tool) -> str:
    """Return the tool's name as JSON, with quotes."""
    return json.dumps(tool.name, ensure_ascii=False)


def arguments(tool: Tool, is_enforced: bool, excludes: Iterable[str] = (), style: str = "json") -> Format:
    """Return a format that matches the arguments of a call.

    They match the tool's schema if it is strict or `is_enforced`; otherwise any object is allowed. excludes: markers
    that strings must not contain, since they would end the call where they are tokens.
    """
    schema = tool.parameters if (is_enforced or tool.strict) and tool.parameters else ANY_OBJECT
    return {"type": "json_schema", "json_schema": dict(schema), "style": style, "excludes": list(excludes)}


def call_list(tags: Sequence[Format], separator: str, parallel: bool) -> Format:
    """Return a format that matches one call, or with `parallel` several."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }


def text_with_calls(trigger: str, tags: Sequence[Format], parallel: bool) -> Format:
    """Return a format that matches text with calls in it; without `parallel`, the output ends with the first call."""
    return {
        "type": "triggered_tags",
        "triggers": [trigger],
        "tags": list(tags),
        "at_least_one": False,
        "stop_after_first": not parallel,
    }
