"""Regular expressions: syntax that a grammar cannot express and that the compiler would ignore."""

from collections.abc import Iterator
from dataclasses import dataclass

MAX_REGEX_CHARS = 8192
LOOKAROUND = ("(?=", "(?!", "(?<=", "(?<!")
CONTROL_ESCAPES = frozenset("nrtfv0c")
HEX_DIGITS = {"x": 2, "u": 4}


@dataclass(frozen=True, slots=True)
class _Item:
    """A character of an expression, or an escape."""

    place: int  # of the first character, from 0
    text: str
    in_class: bool
    is_negated: bool  # the class


def check_regex(pattern: str) -> None:
    """Raise ValueError with the position of syntax that cannot be enforced.

    An expression always matches the whole output, so `^` may only be at its start and `$` at its end.
    """
    if len(pattern) > MAX_REGEX_CHARS:
        raise ValueError(f"the regular expression has {len(pattern)} characters, over the limit of {MAX_REGEX_CHARS}")
    for item in _items(pattern):
        if item.in_class:
            continue
        if pattern.startswith(LOOKAROUND, item.place):
            raise _unsupported("a lookaround", item.place, "which is not supported")
        if item.text == "^" and item.place > 0:
            raise _unsupported("^", item.place, "but only the first character may be one")
        if item.text == "$" and item.place < len(pattern) - 1:
            raise _unsupported("$", item.place, "but only the last character may be one")


def check_string_pattern(pattern: str) -> None:
    """Raise ValueError for a pattern of JSON strings with syntax that cannot be enforced.

    A grammar matches a string as it is written. JSON writes quotes, backslashes and control characters as escapes, so a
    pattern must not ask for them. Negated classes leave them out.
    """
    check_regex(pattern)
    for item in _items(pattern):
        if not item.is_negated and _needs_escape(item.text):
            reason = "which JSON strings must escape; patterns of strings cannot match it"
            raise _unsupported("a quote, backslash or control character", item.place, reason)


def _items(pattern: str) -> Iterator[_Item]:
    place, in_class, is_negated = 0, False, False
    while place < len(pattern):
        length = 1
        if pattern[place] == "\\":
            length = 2 + HEX_DIGITS.get(pattern[place + 1 : place + 2], 0)
        elif in_class and pattern[place] == "]":
            in_class = is_negated = False
        elif not in_class and pattern[place] == "[":
            in_class, is_negated = True, pattern.startswith("^", place + 1)
            length = 2 if is_negated else 1
        yield _Item(place, pattern[place : place + length], in_class, is_negated)
        place += length


def _needs_escape(text: str) -> bool:
    """Return whether a character or escape stands for one that JSON strings escape."""
    if text[0] != "\\" or len(text) == 1:
        return ord(text[0]) < 0x20 or text[0] == '"' or text == "\\"
    kind, digits = text[1], text[2:]
    if kind not in HEX_DIGITS:
        return kind in CONTROL_ESCAPES or _needs_escape(kind)
    try:
        return _needs_escape(chr(int(digits, 16)))
    except ValueError:
        return False  # malformed: the compiler reports it


def _unsupported(what: str, place: int, reason: str) -> ValueError:
    return ValueError(f"the regular expression has {what} at character {place + 1}, {reason}")
