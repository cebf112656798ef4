"""Python literals as JSON."""

import json
import re

import orjson

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>[rR]?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))
    |(?P<number>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.]))
    |(?P<name>True|False|None|true|false|null)(?!\w)
    |(?P<symbol>[\[\](){},:])
    )""",
    re.VERBOSE | re.DOTALL,
)
_NAMES = {"True": "true", "False": "false", "None": "null"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|\n|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "\n": ""}
_CLOSING = {"[": "]", "(": "]", "{": "}"}


def to_json(literal: str) -> str | None:
    """Return the JSON of a literal of strings, numbers, booleans, None, lists, tuples and dicts; None for other text.

    JSON itself is also accepted. Takes time linear in the length.
    """
    output: list[str] = []
    place, end = 0, len(literal.rstrip())
    while place < end:
        match = _TOKEN.match(literal, place, end)
        if match is None:
            return None
        place = match.end()
        text = match.group().lstrip()
        if match["string"] is not None:
            value = _string(text)
            if value is None:
                return None
            output.append(json.dumps(value, ensure_ascii=False))
        elif match["symbol"] is not None:
            if text in "])}" and output and output[-1] == ", ":  # a comma in front of a closing bracket
                output.pop()
            output.append({",": ", ", ":": ": ", "(": "[", ")": "]"}.get(text, text))
        else:
            output.append(_NAMES.get(text, text))
    return "".join(output)


def _string(text: str) -> str | None:
    """Return the value of a string literal; None for a code point that does not exist."""
    if text[0] in "rR":
        return text[2:-1]
    if text[0] == '"':
        try:
            return str(orjson.loads(text))
        except ValueError:  # its escapes are Python's
            pass
    try:
        value = _ESCAPE.sub(_character, text[1:-1])
    except (ValueError, OverflowError):
        return None
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _character(match: re.Match[str]) -> str:
    escape = match[1]
    if escape[0] in "xuU" and len(escape) > 1:
        return chr(int(escape[1:], 16))
    if escape[0] in "01234567":
        return chr(int(escape, 8))
    return _ESCAPED.get(escape, escape if escape in "\\'\"" else match[0])
