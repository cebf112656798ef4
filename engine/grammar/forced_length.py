"""Whether the texts that a grammar forces have a bound.

xgrammar's search for a forced text ends only where there is a choice, which may be never, and it sees no tokens that a
structural tag names. So forced texts are used for grammars whose forced texts are known to be short: a forced text is
at most as long as the shortest output that can follow.
"""

import re
from math import inf, prod

from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.schema.finite import shortest_length
from baton.engine.grammar.schema.json_schema import schemas_in
from baton.engine.grammar.schema.structural_tag import SCHEMA_TYPES

MAX_CHARS = 1 << 16
REPETITION = re.compile(r"\{ *([0-9]+) *,?[ 0-9]*\}")
TEXT_TYPES = frozenset({"structural_tag", "const_string", "any_text", "sequence", "or", "tag", "triggered_tags",
                        "tags_with_separator", "optional"})  # fmt: skip


def has_short_forced_texts(grammar: Grammar) -> bool:
    """Return whether the texts that a grammar forces are known to be short; `grammar` has passed `check`."""
    match grammar.kind:
        case GrammarKind.JSON_OBJECT | GrammarKind.CHOICE:  # at most as long as the source
            return True
        case GrammarKind.REGEX:
            return expression_length(grammar.source) <= MAX_CHARS
        case GrammarKind.EBNF:
            return False
        case GrammarKind.JSON_SCHEMA:
            return _schema_length(grammar.parsed()) <= MAX_CHARS
        case GrammarKind.STRUCTURAL_TAG:
            return _tag_length(grammar.parsed()) <= MAX_CHARS


def expression_length(pattern: str) -> float:
    """Return a bound on the shortest text of a regular expression: its length times the least counts in it."""
    return len(pattern) * prod(max(1.0, float(count)) for count in REPETITION.findall(pattern))


def _schema_length(schema: object) -> float:
    return shortest_length(schema, schemas_in(schema), expression_length)


def _tag_length(tag: object) -> float:
    """Return a bound for a structural tag; infinite for formats that repeat parts or name tokens."""
    length, pending = 0.0, [tag]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            kind = part.get("type")
            if kind in SCHEMA_TYPES:
                length += _schema_length(part.get("json_schema", True))
            elif kind == "regex":
                length += expression_length(str(part.get("pattern", "")))
            elif kind not in TEXT_TYPES or "token" in part:
                return inf
            pending += [inner for name, inner in part.items() if name != "json_schema"]
        elif isinstance(part, str):
            length += len(part)
    return length
