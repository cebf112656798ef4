"""Whether a grammar is cheap to compile, judged by its source."""

import re
from collections.abc import Iterator
from math import inf, prod

from baton.engine.grammar.grammar import Grammar, GrammarKind

MAX_JSON_CHARS = 16 << 10
MAX_CHOICE_CHARS = 1 << 10
MAX_SOUGHT_CHARS = 128  # of all texts that free text excludes or ends at: the time grows with the cube of their number
MAX_TEXT_COST = 48  # of a regular expression: characters times counts of repetitions
MAX_TEXTS_COST = 192  # of all in a schema
MAX_COUNT = 32  # of a length or number; the sum of a schema's is bounded by MAX_TEXTS_COST
MAX_RANGES = 8192  # of all integers with multipleOf and bounds, together: the compiler tries each number
MAX_OPTIONAL = 16  # optional properties of an object
REPETITION = re.compile(r"\{([0-9 ]*),?([0-9 ]*)\}")
ITEM = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{[^}]*\}|.", re.DOTALL)  # escape, class, count, or character
REPEATING_TAGS = ("star", "plus", "repeat")
SIMPLE_TAGS = ("const_string", "tag", "json_schema")
COUNT_COSTS = {
    "minLength": 1, "maxLength": 1, "minProperties": 1, "maxProperties": 1, "min": 2, "max": 2,
    "minItems": 1 / 4, "maxItems": 1 / 4, "multipleOf": 1 / 4,
}  # fmt: skip
SOUGHT = frozenset({"excludes", "rules", "triggers", "end"})  # members with lists of such texts
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
END_COST = 1 / 16  # of a character of a single end
FORMAT_COST = 12  # of `format`, a regular expression in the compiler


def is_cheap(grammar: Grammar) -> bool:
    """Return whether a grammar that has passed `check` compiles within seconds, whatever it is.

    False for many that are just as cheap. The time of others has no bound: it may grow with the cube of the number of
    optional parts, or of a number such as `maxProperties`.
    """
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return True
        case GrammarKind.CHOICE:
            return len(grammar.source) <= MAX_CHOICE_CHARS
        case GrammarKind.EBNF:  # a rule that repeats itself ends the process
            return False
        case GrammarKind.REGEX:
            return _text_cost(grammar.source) <= MAX_TEXT_COST
        case GrammarKind.JSON_SCHEMA | GrammarKind.STRUCTURAL_TAG:
            if len(grammar.source) > MAX_JSON_CHARS:
                return False
            return sum(_costs(grammar.parsed())) <= MAX_TEXTS_COST


def is_surely_cheap(grammar: Grammar) -> bool:
    """Return `is_cheap` for a grammar that may be invalid; False then."""
    try:
        return is_cheap(grammar)
    except (ValueError, RecursionError, AttributeError, TypeError, OverflowError):
        return False


def _text_cost(text: str) -> float:
    """Return the length of an expression, times the counts of all its repetitions: they may be nested."""
    if len(text) > MAX_TEXT_COST or _repeats_repetition(text):
        return inf
    counts = (max(float(number or 1) for number in found) for found in REPETITION.findall(text.replace(" ", "")))
    return len(text) * prod(max(1, count) for count in counts)


def _repeats_repetition(text: str) -> bool:
    """Return whether a group that has a repetition, or may be empty, is repeated without a bound.

    Even the first mask of some of these takes seconds.
    """
    groups, is_inner, last = [False], False, ""  # whether each open group has a repetition; the same of the last item
    for item in ITEM.findall(text):
        if is_inner and (item in ("*", "+") or item.endswith(",}")):
            return True
        is_empty = item in ("|", ")") and last in ("(", "|")  # an alternative
        if is_inner or is_empty or item in ("*", "+", "?") or item[0] == "{":
            groups[-1] = True
        is_inner = item == ")" and groups.pop() if len(groups) > 1 else False
        if item == "(":
            groups.append(False)
        last = item
    return False


def _pattern_cost(pattern: str) -> float:
    """Return the cost of a pattern in a schema or tag; infinite for one that is expensive by itself."""
    cost = _text_cost(pattern)
    return cost if cost <= MAX_TEXT_COST else inf


def _costs(value: object) -> Iterator[float]:
    """Yield the costs of the parts of a schema or tag."""
    if isinstance(value, list):
        for each in value:
            yield from _costs(each)
    elif isinstance(value, dict):
        properties, required = value.get("properties"), value.get("required")
        if isinstance(properties, dict):
            names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
            if len(properties.keys() - names) > MAX_OPTIONAL:
                yield inf
        if value.get("type") in REPEATING_TAGS and not _is_simple(value.get("content")):
            yield inf
        if "multipleOf" in value:
            yield _range_cost(value)
        for name, inner in value.items():
            yield _member_cost(name, inner)
            yield from _costs(inner)


def _is_simple(content: object) -> bool:
    """Return whether the content of a repeating tag begins with a text that separates its repetitions."""
    if not isinstance(content, dict) or content.get("type") not in SIMPLE_TAGS:
        return False
    return content.get("value") != "" and content.get("begin") != ""


def _range_cost(schema: dict[str, object]) -> float:
    """Return the cost of the numbers between a schema's bounds; infinite if there is only one."""
    low = [bound for name in LOWER if isinstance(bound := schema.get(name), int | float)]
    high = [bound for name in UPPER if isinstance(bound := schema.get(name), int | float)]
    if not low and not high:
        return 0
    try:
        num_values = max(high) - min(low) + 1 if low and high else inf
    except OverflowError:  # one of them is no float
        return inf
    return max(0, num_values) * MAX_TEXTS_COST / MAX_RANGES if num_values <= MAX_RANGES else inf


def _member_cost(name: str, value: object) -> float:
    if name in COUNT_COSTS and isinstance(value, int | float):
        return max(0, value) * COUNT_COSTS[name] if value <= MAX_COUNT else inf
    if name == "grammar":
        return inf
    if name in SOUGHT and isinstance(value, list):
        texts = (each[0] if isinstance(each, list) and each else each for each in value)  # a rule begins with its text
        return sum(len(each) for each in texts if isinstance(each, str)) * MAX_TEXTS_COST / MAX_SOUGHT_CHARS
    if name == "end" and isinstance(value, str):
        return len(value) * END_COST
    if name == "patternProperties" and isinstance(value, dict):
        return sum(map(_pattern_cost, value))
    if name == "pattern" and isinstance(value, str):
        return _pattern_cost(value)
    return FORMAT_COST if name == "format" else 0
