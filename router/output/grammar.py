"""Grammars of outputs with calls of tools, and the formats of which they consist (xgrammar's structural tags)."""

import json
from collections.abc import Mapping

from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.schema.json_schema import LISTED_SCHEMAS, NAMED_SCHEMAS, ONE_SCHEMA
from baton.router.errors import FieldError

Format = dict[str, object]
OPEN_OBJECT: Mapping[str, object] = {"type": "object", "additionalProperties": True}


def tag_grammar(form: Mapping[str, object], field: str) -> Grammar:
    """Return the grammar of a format. `field`: name of the request's field, for errors."""
    source = json.dumps({"type": "structural_tag", "format": form}, separators=(",", ":"))
    return Grammar(GrammarKind.STRUCTURAL_TAG, source, field=field)


def check_parameters(parameters: Mapping[str, object], field: str) -> None:
    """Raise FieldError for a function's parameters that a grammar would not enforce as they are."""
    try:
        Grammar(GrammarKind.JSON_SCHEMA, json.dumps(parameters)).check()
    except ValueError as error:
        raise FieldError(field, f"{field}: {error}") from None


def format_of(grammar: Grammar) -> Format:
    """Return the format that matches the same texts as a valid grammar. Raises FieldError if there is none."""
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return {"type": "json_schema", "json_schema": OPEN_OBJECT}
        case GrammarKind.JSON_SCHEMA:
            schema = json.loads(grammar.source)
            return {"type": "json_schema", "json_schema": _opened(schema) if grammar.is_open else schema}
        case GrammarKind.REGEX:
            return {"type": "regex", "pattern": grammar.source}
        case GrammarKind.EBNF:
            return {"type": "grammar", "grammar": grammar.source}
        case GrammarKind.CHOICE:
            choices = json.loads(grammar.source)
            return {"type": "or", "elements": [{"type": "const_string", "value": each} for each in choices]}
        case GrammarKind.STRUCTURAL_TAG:
            form = grammar.parsed().get("format")
            if not isinstance(form, dict):
                text = "with tools or reasoning, a structural tag needs the field format"
                raise FieldError(grammar.field, f"{grammar.field}: {text}")
            return form


def _opened(schema: object) -> object:
    """Return a schema whose objects and arrays may have what it does not mention, as with `strict: false`."""
    if not isinstance(schema, dict):
        return schema
    opened: dict[str, object] = {}
    for name, value in schema.items():
        if name in ONE_SCHEMA:
            opened[name] = _opened(value)
        elif name in NAMED_SCHEMAS and isinstance(value, dict):
            opened[name] = {key: _opened(inner) for key, inner in value.items()}
        elif name in LISTED_SCHEMAS and isinstance(value, list):
            opened[name] = [_opened(inner) for inner in value]
        else:
            opened[name] = value
    if (schema.get("type") == "object" or "properties" in schema) and "unevaluatedProperties" not in schema:
        opened.setdefault("additionalProperties", True)
    if "prefixItems" in schema and "unevaluatedItems" not in schema:
        opened.setdefault("items", True)
    return opened
