"""Rewriting of JSON Schemas and structural tags to equal ones that xgrammar enforces."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from baton.engine.grammar.schema.json_schema import LISTED_SCHEMAS, NAMED_SCHEMAS, ONE_SCHEMA
from baton.engine.grammar.schema.structural_tag import SCHEMA_TYPES

# xgrammar's own rules for these allow characters that are not JSON: control characters, and quotes.
# All that JSON strings need not escape, without surrogates: these are not UTF-8, and would be shown as replacements.
STRING_CHARACTER = r"[ !#-\[\]-" + "\ud7ff\ue000-\U0010ffff]"
# In values of the styles like XML, which a marker ends: without its first character.
VALUE_CHARACTER = STRING_CHARACTER.replace("#-", "#-;=-")
BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
FORMAT_PATTERNS = {
    "email": r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+$",
    "ipv4": rf"^{BYTE}(\.{BYTE}){{3}}$",  # the compiler's own allows leading zeros, which some readers take for octal
}
# Bounds of integers, for which the compiler takes whole numbers alone.
WHOLE_BOUNDS: Mapping[str, Callable[[Any], int]] = {
    "minimum": math.ceil, "maximum": math.floor, "exclusiveMinimum": math.floor, "exclusiveMaximum": math.ceil,
}  # fmt: skip
# Between two tokens of JSON. Without a bound, weak models repeat white space until max_tokens.
MAX_WHITESPACE = 20
RENAMED = {"unevaluatedProperties": "additionalProperties", "unevaluatedItems": "items"}


def compilable_schema(schema: object, character: str = STRING_CHARACTER) -> object:
    """Return the schema for the compiler, which has passed `check_schema`; its nesting is bounded.

    character: class of the characters that strings of a bounded length may have.
    """
    if not isinstance(schema, dict):
        return schema
    rewritten = {name: _compilable(name, value, character) for name, value in schema.items()}
    for name, renamed in RENAMED.items():  # the same in a schema without subschemas for the same object or array
        if name in rewritten:
            value = rewritten.pop(name)
            rewritten.setdefault(renamed, value)
    if "minLength" in rewritten or "maxLength" in rewritten:
        rewritten["pattern"] = _length_pattern(
            character, rewritten.pop("minLength", 0), rewritten.pop("maxLength", None)
        )
    kind = rewritten.get("type")
    if "integer" in (kinds := kind if isinstance(kind, list) else [kind]) and "number" not in kinds:
        rewritten |= {name: to_whole(rewritten[name]) for name, to_whole in WHOLE_BOUNDS.items() if name in rewritten}
    if rewritten.get("format") in FORMAT_PATTERNS:
        rewritten["pattern"] = FORMAT_PATTERNS[str(rewritten.pop("format"))]
    return rewritten


def compilable_tag(tag: object) -> object:
    """Return the structural tag for the compiler, with rewritten schemas."""
    if isinstance(tag, list):
        return [compilable_tag(each) for each in tag]
    if not isinstance(tag, dict):
        return tag
    if tag.get("type") not in SCHEMA_TYPES:
        return {name: compilable_tag(value) for name, value in tag.items()}
    is_json = tag.get("type") == "json_schema" and tag.get("style", "json") == "json"
    schema = compilable_schema(tag.get("json_schema"), STRING_CHARACTER if is_json else VALUE_CHARACTER)
    rewritten = {**tag, "json_schema": schema}
    return {"max_whitespace_cnt": MAX_WHITESPACE, **rewritten} if tag.get("type") == "json_schema" else rewritten


def _compilable(name: str, value: object, character: str) -> object:
    if name in ONE_SCHEMA:
        return compilable_schema(value, character)
    if name in NAMED_SCHEMAS and isinstance(value, Mapping):
        return {key: compilable_schema(inner, character) for key, inner in value.items()}
    if name in LISTED_SCHEMAS and isinstance(value, list):
        return [compilable_schema(inner, character) for inner in value]
    return value


def _length_pattern(character: str, least: object, most: object) -> str:
    return f"^{character}{{{least},{'' if most is None else most}}}$"
