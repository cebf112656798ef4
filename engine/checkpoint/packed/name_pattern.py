"""Regular expressions for modules' names, matched in bounded time whatever a checkpoint's config has. No torch."""

import math
import re
from collections.abc import Callable, Iterable
from functools import cache
from re import _constants, _parser  # type: ignore[attr-defined]  # the parser that `re` itself uses; in no stubs
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema

from baton.engine.checkpoint.stored_tensor import MAX_NAME_CHARS

MAX_PATTERN_CHARS = 1000
MAX_CHOICES = 36.5  # logarithm, of a pattern that backtracks: three times any number of characters, and the rest
# Valid in both languages with another meaning: Rust's expressions have nested classes and set operations in brackets,
# and word boundaries such as \< and \b{start}; they lack possessive repeats such as a*+.
AMBIGUOUS = re.compile(r"\[[^\]]*(?:\[|&&|--|~~)|[*+?}]\+|\\[<>]|\\b\{")
REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
LOOKS = (_constants.ASSERT, _constants.ASSERT_NOT)


@cache
def matcher(pattern: str) -> Callable[[str], object]:
    """Return a function that returns a true value if a whole name matches.

    It takes linear time, except for look-around and back-references, which Rust's regular expressions lack: of such
    patterns only those that repeat little are accepted. Raises ValueError for others, re.error for one that is invalid.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"it has over {MAX_PATTERN_CHARS} characters")
    backtracking = re.compile(pattern)
    if AMBIGUOUS.search(pattern) is None:
        try:
            schema = core_schema.str_schema(pattern=rf"\A(?:{pattern})\z", regex_engine="rust-regex")
            return SchemaValidator(schema).isinstance_python
        except SchemaError:
            pass
    if _choices(_parser.parse(pattern)) > MAX_CHOICES:
        raise ValueError(
            "it has look-around or back-references, and repeats so much that it could take very long to match"
        )
    return backtracking.fullmatch


def _choices(parsed: Iterable[tuple[object, Any]], *, is_repeated: bool = False) -> float:
    """Return the logarithm of the ways in which a parsed expression can match: what backtracking may have to try.

    is_repeated: whether it is in a repeat; a choice there is one in each round, without a useful bound.
    """
    choices = looked_at = 0.0
    for operator, argument in parsed:
        if operator in REPEATS:
            least, most, inner = argument
            counts = min(most - least, MAX_NAME_CHARS) + 1
            if is_repeated and counts > 1:
                return math.inf
            choices += math.log2(counts) + _choices(inner, is_repeated=is_repeated or most > 1)
        elif operator == _constants.BRANCH:
            if is_repeated:
                return math.inf
            choices += math.log2(len(argument[1])) + sum(map(_choices, argument[1]))
        elif operator in LOOKS:  # once it has matched, backtracking does not enter it again
            looked_at = max(looked_at, choices + _choices(argument[1], is_repeated=is_repeated))
        elif isinstance(argument, tuple | _parser.SubPattern):
            parts = argument if isinstance(argument, tuple) else (argument,)
            inner_parts = [part for part in parts if isinstance(part, _parser.SubPattern)]
            choices += sum(_choices(part, is_repeated=is_repeated) for part in inner_parts)
    return max(choices, looked_at)
