"""Splitting patterns of tokenizers, made into Python's for texts of ASCII characters alone.

Tokenizers write them for an engine that knows Unicode's classes; within ASCII those are short lists of characters.
"""

import re

ASCII_CLASSES = {
    "L": "A-Za-z", "Lu": "A-Z", "Ll": "a-z", "Lt": "", "Lm": "", "Lo": "", "M": "", "N": "0-9", "Nd": "0-9",
    "Nl": "", "No": "", "P": r"!-#%-*,-/:;?@\[-\]_{}", "S": r"$+<=>\^`|~", "Z": " ", "Han": "",
}  # fmt: skip

# What is understood, one piece at a time; everything else is refused. A repetition of a repetition is no piece, since
# engines differ in what they mean by it.
REPEAT = r"(?P<repeat>[*+?]|\{\d+(?:,\d*)?\})?(?![*+?{])"
OUTSIDE = re.compile(
    rf"""\\p\{{(?P<name>\w+)\}}{REPEAT}
    |(?P<open>\[\^?)
    |(?:\\[srntS]|[\ '\w]){REPEAT.replace("repeat", "again")}
    |\(\?(?:[:!=]|i:)|\)\??(?![*+?{{])|\|""",
    re.VERBOSE,
)
INSIDE = re.compile(
    r"""\\p\{(?P<name>\w+)\}
    |\\[srntS/.^\]-]|[^\\\[\]&^-]
    |(?P<close>\](?:[*+?](?![*+?{])|(?![*+?{])))""",
    re.VERBOSE,
)


class UnknownPattern(Exception):
    """The pattern has something that is not understood here."""


def ascii_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern whose matches in any ASCII text are the given one's. Raises UnknownPattern."""
    parts: list[str] = []
    place, in_class = 0, False
    while place < len(pattern):
        found = (INSIDE if in_class else OUTSIDE).match(pattern, place)
        if found is None:
            raise UnknownPattern(f"{pattern[place : place + 20]!r} at {place}")
        groups, text = found.groupdict(), found[0]
        if groups["name"] is not None:
            text = _ascii_class(groups["name"], in_class) + (groups.get("repeat") or "")
        elif groups.get("open") is not None:
            in_class = True
        elif groups.get("close") is not None:
            in_class = False
        parts.append(text)
        place = found.end()
    try:
        # An empty class stands for characters that ASCII has none of.
        return re.compile("".join(parts).replace("[]", "(?!)"), re.ASCII)
    except re.error as error:
        raise UnknownPattern(str(error)) from error


def covers_ascii(pattern: re.Pattern[str]) -> bool:
    """Whether its matches follow each other without gaps in any ASCII text."""
    following = ["", *map(chr, range(128))]
    return all(
        (found := pattern.match(chr(code) + after)) is not None and found.end() > 0
        for code in range(128)
        for after in following
    )


def _ascii_class(name: str, in_class: bool) -> str:
    if name not in ASCII_CLASSES:
        raise UnknownPattern(f"class {name}")
    characters = ASCII_CLASSES[name]
    return characters if in_class else f"[{characters}]"
