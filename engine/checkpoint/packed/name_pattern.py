"""Regular expressions for modules' names, matched in bounded time whatever a checkpoint's config has. No torch."""

import math
import re
from collections.abc import Callable
from functools import cache
from re import _constants, _parser  # type: ignore[attr-defined]  # the parser that `re` itself uses; in no stubs

from pydantic_core import SchemaError, SchemaValidator, core_schema

from baton.engine.checkpoint.stored_tensor import MAX_NAME_CHARS

MAX_PATTERN_CHARS = 1000
MAX_CHOICES = 40.0  # logarithm, of a pattern that backtracks: about three times any number of characters
# Inside of brackets, Rust's expressions have nested classes and set operations, Python's have not.
SET_OPERATION = re.compile(r"\[[^\]]*(?:\[|&&|--|~~)")
REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)


@cache
def matcher(pattern: str) -> Callable[[str], object]:
    """Return a function that returns a true value if a whole name matches.

    It takes linear time, except for look-around and back-references, which Rust's regular expressions lack: of such
    patterns only those that repeat little are accepted. Raises ValueError for others, re.error for one that is invalid.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"it has over {MAX_PATTERN_CHARS} characters")
    backtracking = re.compile(pattern)
    if SET_OPERATION.search(pattern) is None:
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


def _choices(parsed: object, *, is_repeated: bool = False) -> float:
    """Return the logarithm of the ways in which a parsed expression can match: what backtracking may have to try."""
    if isinstance(parsed, tuple) and parsed and parsed[0] in REPEATS:
        _, (least, most, inner) = parsed
        if most > 1 and is_repeated:
            return math.inf
        counts = min(most - least, MAX_NAME_CHARS) + 1
        return math.log2(counts) + _choices(inner, is_repeated=is_repeated or most > 1)
    if isinstance(parsed, tuple) and parsed and parsed[0] == _constants.BRANCH:
        _, (_, branches) = parsed
        if is_repeated:
            return math.inf
        return math.log2(len(branches)) + sum(map(_choices, branches))
    if isinstance(parsed, (list, tuple, _parser.SubPattern)):
        return sum(_choices(each, is_repeated=is_repeated) for each in parsed)
    return 0.0
