"""Rewriting of JSON Schemas and structural tags to equal ones that xgrammar enforces."""

from collections.abc import Mapping

from baton.engine.grammar.json_schema import LISTED_SCHEMAS, NAMED_SCHEMAS, ONE_SCHEMA
from baton.engine.grammar.structural_tag import SCHEMA_TYPES

# xgrammar's own rules for these allow characters that are not JSON: control characters, and quotes.
# All that JSON strings need not escape, without surrogates: these are not UTF-8, and would be shown as replacements.
STRING_CHARACTER = r"[ !#-\[\]-" + "\ud7ff\ue000-\U0010ffff]"
# In values of the styles like XML, which a marker ends: without its first character.
VALUE_CHARACTER = STRING_CHARACTER.replace("#-", "#-;=-")
EMAIL = r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+$"
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
    if rewritten.get("format") == "email":
        del rewritten["format"]
        rewritten["pattern"] = EMAIL
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
