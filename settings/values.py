"""Parsing of option values from command-line text or YAML scalars."""

import json
import math
import re
import reprlib
from collections.abc import Mapping


class JsonText(str):
    """A JSON object as text, with sorted keys."""

    __slots__ = ()


Value = str | int | float | bool | tuple[str, ...] | None

SIZE_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
MAX_INT = (1 << 63) - 1
MAX_SHOWN_CHARS = 200
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)


class OptionError(ValueError):
    """An unknown, missing or invalid option; the text has its name and what is allowed."""


class _Short(reprlib.Repr):
    """A repr of limited length: YAML aliases can make a small file endless to print."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxlong = self.maxother = MAX_SHOWN_CHARS

    def repr_int(self, x: int, level: int) -> str:
        """Return a number's text; Python refuses to print those of over 4,300 digits."""
        return super().repr_int(x, level) if abs(x) <= MAX_INT else f"a number of {x.bit_length()} bits"


def shown(value: object) -> str:
    """Return a value's text for errors: shortened, with unprintable characters escaped."""
    return _Short().repr(value)


def shown_name(name: str) -> str:
    """Return an option's name for errors: unchanged if it is printable and short, otherwise as `shown`."""
    return name if name.isprintable() and len(name) <= MAX_SHOWN_CHARS else shown(name)


def parse_bytes(text: str) -> int:
    """Return the bytes of a size such as 1048576, 1e9, 512M, 1.5GB (powers of 1000) or 4GiB (powers of 1024).

    Raises ValueError for other texts, and OverflowError for a number beyond floating point.
    """
    match = SIZE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return int(float(match[1]) * SIZE_UNITS[(match[2] or "").lower()])


def parse_int(value: object) -> int:
    """Return a 64-bit integer. Raises ValueError for anything else, booleans included."""
    if isinstance(value, str):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INT:
        return value
    raise ValueError


def parse_size(value: object) -> int:
    """Return bytes from an integer, a float with an integer value (1e9), or a text with a unit. Raises ValueError."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return parse_int(parse_bytes(value) if isinstance(value, str) else value)


def parse_float(value: object) -> float:
    """Return a finite number. Raises ValueError, or OverflowError if it is too large."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or not math.isfinite(float(value)):
        raise ValueError(value)
    return float(value)


def parse_bool(value: object) -> bool:
    """Return the boolean of true or false in any case. Raises ValueError for anything else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError(value)


def parse_text(value: object) -> str:
    """Return a text; numbers become texts, since YAML reads a name such as 7 as a number. Raises ValueError."""
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return str(value)
    raise ValueError(value)


def parse_texts(value: object) -> tuple[str, ...]:
    """Return the texts of a list, or of one text separated by commas outside of braces. Raises ValueError."""
    if isinstance(value, str):
        return tuple(part.strip() for part in split_outside_braces(value, ",") if part.strip())
    if isinstance(value, list | tuple):
        return tuple(parse_text(part) for part in value)
    raise ValueError(value)


def split_outside_braces(text: str, separator: str) -> list[str]:
    """Return the parts of a text between separators, of one character, that are in no braces: JSON stays whole.

    If braces are not closed, they are characters like any other.
    """
    parts, depth, is_quoted, is_escaped = [""], 0, False, False
    for char in text:
        if is_quoted:
            is_quoted, is_escaped = is_escaped or char != '"', char == "\\" and not is_escaped
        elif char == '"' and depth:
            is_quoted = True
        else:
            depth = max(0, depth + (char == "{") - (char == "}"))
        if char == separator and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return text.split(separator) if depth else parts


def parse_json(value: object) -> JsonText:
    """Return the text of a JSON object, from any text of it or a mapping. Raises ValueError."""
    try:
        found = json.loads(value, parse_constant=_refuse_constant) if isinstance(value, str) else value
        if isinstance(found, Mapping):
            return JsonText(json.dumps(found, sort_keys=True, allow_nan=False))
    except (TypeError, RecursionError) as error:  # a date or a set in YAML; nested too deeply
        raise ValueError(value) from error
    raise ValueError(value)


def parsed_json(text: JsonText | None) -> dict[str, object]:
    """Return the object of a text of `parse_json`; None is empty."""
    found: dict[str, object] = {} if text is None else json.loads(text)
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(name)
