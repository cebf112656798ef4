"""A request's grammar as data, and the bounds on it that need no compiler."""

import json
import logging
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.schema.json_schema import check_schema
from baton.engine.grammar.schema.regex import check_counts, check_regex
from baton.engine.grammar.schema.structural_tag import check_structural_tag, current_tag

logger = logging.getLogger(__name__)

MAX_SOURCE_BYTES = 128 << 10  # every command to a worker carries the source
MAX_NESTING = 64  # of JSON arrays and objects in a schema or structural tag
MAX_SHOWN_CHARS = 50
MAX_DIGITS = 4000  # of an integer in JSON: Python reads at most 4300


class GrammarKind(Enum):
    """The language in which a grammar is written."""

    JSON_OBJECT = "json_object"  # any JSON object
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"  # one of several texts
    EBNF = "ebnf"
    STRUCTURAL_TAG = "structural_tag"


JSON_KINDS = frozenset({GrammarKind.JSON_SCHEMA, GrammarKind.STRUCTURAL_TAG, GrammarKind.CHOICE})


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that a request's output must match. Grammars with the same content are equal."""

    kind: GrammarKind
    source: str = ""  # JSON for a schema, a structural tag and the list of choices; empty for JSON_OBJECT
    is_open: bool = False  # schemas: objects and arrays may have properties and items that the schema does not mention
    field: str = field(default="grammar", compare=False)  # name of the request's field, for errors

    def validate(self) -> None:
        """Raise InvalidRequest, which names the field, if the grammar exceeds a bound or cannot be enforced."""
        try:
            self.check()
        except ValueError as error:
            raise self.invalid(str(error)) from None

    def check(self) -> None:
        """Raise ValueError, without the field's name, if the grammar exceeds a bound or cannot be enforced."""
        try:
            num_bytes = len(self.source.encode())
        except UnicodeEncodeError:
            raise ValueError("it has half of a surrogate pair, which is no character") from None
        if num_bytes > MAX_SOURCE_BYTES:
            raise ValueError(f"it has {num_bytes} bytes, over the limit of {MAX_SOURCE_BYTES}")
        try:
            self._check_content()
        except ValueError:
            raise
        except Exception:  # a type or number that the checks did not expect
            logger.exception("a grammar could not be validated")
            raise ValueError("it is invalid: a keyword has a value of the wrong type or size") from None

    def parsed(self) -> Any:
        """Return the value of a source in JSON, a structural tag in its current form. Raises ValueError."""
        value = json.loads(self.source)
        return current_tag(value) if self.kind is GrammarKind.STRUCTURAL_TAG else value

    def invalid(self, problem: str) -> InvalidRequest:
        """Return the error for a grammar with this problem; its message begins with the field's name."""
        return InvalidRequest(f"{self.field}: {problem}")

    def _check_content(self) -> None:
        if self.kind in JSON_KINDS:
            self._check_json()
        elif self.kind is GrammarKind.REGEX:
            check_regex(self.source)
        elif self.kind is GrammarKind.EBNF:
            if not self.source.strip():
                raise ValueError("the grammar is empty")
            check_counts(self.source)

    def _check_json(self) -> None:
        """Raise ValueError for JSON that is malformed, nested too deeply, or of the wrong type."""
        try:
            value = json.loads(self.source, parse_int=_whole, parse_constant=_refuse_constant)
        except RecursionError:
            raise ValueError(f"it is nested over {MAX_NESTING} levels deep") from None
        if nesting(value) > MAX_NESTING:
            raise ValueError(f"it is nested over {MAX_NESTING} levels deep")
        if self.kind is GrammarKind.JSON_SCHEMA:
            check_schema(value)
        elif self.kind is GrammarKind.CHOICE:
            _check_choices(value)
        else:
            check_structural_tag(current_tag(value))


def _check_choices(choices: object) -> None:
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) and each for each in choices):
        raise ValueError("it must be a list of one or more strings, none of them empty")


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"it has a number of {len(digits)} digits, over the limit of {MAX_DIGITS}")
    return int(digits)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def nesting(value: object) -> int:
    """Return how many arrays and objects are nested in each other. `value` was parsed, so recursion was possible."""
    depth, level = 0, [value]
    while level:
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        depth += any(isinstance(each, dict | list) for each in level)
        level = inner
    return depth
