"""Regular expressions: syntax that a grammar cannot express and that the compiler would ignore."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_REGEX_CHARS = 8192
LOOKAROUND = ("(?=", "(?!", "(?<=", "(?<!")
CONTROL_ESCAPES = frozenset("nrtfvae0c")
# The compiler reads most other letters as themselves, `\Z` as Z.
ESCAPE = re.compile(
    r"\\(?:[dDwWsSnrtfvae0]|c[A-Za-z]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]{1,6}\}|[^A-Za-z0-9])", re.DOTALL
)
NOT_PLAIN = re.compile(r'[\\\[\]^$("\x00-\x1f]')


@dataclass(frozen=True, slots=True)
class _Item:
    """A character of an expression, or an escape."""

    place: int  # of the first character, from 0
    text: str
    in_class: bool
    is_negated: bool  # the class


COUNT_DIGITS = 9  # larger counts overflow in the compiler, which then enforces others
COUNT = re.compile(r"\{[\d ]*+,?[\d ]*+\}")  # possessive: linear in the length of any text
TOO_MANY_DIGITS = re.compile(rf"\d{{{COUNT_DIGITS + 1}}}")


def check_counts(source: str) -> None:
    """Raise ValueError for a count in a regular expression or EBNF that the compiler would read as another one."""
    for found in COUNT.finditer(source):
        if TOO_MANY_DIGITS.search(found[0]):
            place = found.start() + 1
            text = f"the count at character {place} has over {COUNT_DIGITS} digits; give none, or a smaller one"
            raise ValueError(text)


def check_regex(pattern: str) -> None:
    """Raise ValueError with the position of syntax that cannot be enforced.

    An expression always matches the whole output, so `^` may only be at its start and `$` at its end.
    """
    if len(pattern) > MAX_REGEX_CHARS:
        raise ValueError(f"the regular expression has {len(pattern)} characters, over the limit of {MAX_REGEX_CHARS}")
    check_counts(pattern)
    for item in _items(pattern):
        if item.text[0] == "\\" and not ESCAPE.fullmatch(item.text):
            raise _unsupported(f"the escape {item.text}", item.place, "which is not supported")
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
    """Yield the characters and escapes that a check may refuse, and those that delimit classes."""
    place, in_class, is_negated = 0, False, False
    while (found := NOT_PLAIN.search(pattern, place)) is not None:
        place, length = found.start(), 1
        if pattern[place] == "\\":
            escape = ESCAPE.match(pattern, place)
            length = escape.end() - place if escape else 2
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
    kind, digits = text[1], text[2:].strip("{}")
    if kind not in "xu":
        return kind in CONTROL_ESCAPES or _needs_escape(kind)
    try:
        return _needs_escape(chr(int(digits, 16)))
    except ValueError:
        return False  # no character: the compiler reports it


def _unsupported(what: str, place: int, reason: str) -> ValueError:
    return ValueError(f"the regular expression has {what} at character {place + 1}, {reason}")
