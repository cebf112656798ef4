"""Request fields of structured output: OpenAI's `response_format`, and those of vLLM and SGLang."""

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError

from baton.engine.grammar.grammar import MAX_SOURCE_BYTES, Grammar, GrammarKind
from baton.router.errors import FieldError
from baton.router.limits import MAX_ENTRIES
from baton.router.openai.ignored_fields import Label, NeutralFields
from baton.router.openai.request_body import BOOLEAN, AtMost, RequestBody

Source = Annotated[str, Field(min_length=1, max_length=MAX_SOURCE_BYTES)]
Object = dict[str, object]


def _object_or_text(value: object) -> object:
    if not isinstance(value, dict | str) or not value:
        raise PydanticCustomError("object_or_text", "must be an object, or a string with JSON")
    return value


SCHEMA_SCHEMA: JsonSchemaValue = {"anyOf": [{"type": "object", "minProperties": 1}, {"type": "string", "minLength": 1}]}
Schema = Annotated[object, BeforeValidator(_object_or_text), WithJsonSchema(SCHEMA_SCHEMA)]
Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, fail_fast=True), AtMost(MAX_ENTRIES)]
False_ = Annotated[Literal[False], BOOLEAN]


class JsonSchema(RequestBody):
    """A named JSON Schema. If it is strict, outputs have only what the schema mentions."""

    name: Label
    schema_: Object = Field(alias="schema", default_factory=dict)
    description: str | None = None  # ignored: the prompt should describe the output
    strict: bool | None = None


class TextFormat(RequestBody):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(RequestBody):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(RequestBody):
    """JSON that matches a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


class Structure(RequestBody):
    """A part of an output in vLLM's older structural tags."""

    begin: str
    schema_: Object = Field(alias="schema")
    end: str


class StructuralTagFormat(RequestBody):
    """Free text with parts that follow a format (xgrammar's structural tags)."""

    type: Literal["structural_tag"]
    format: Object | None = None
    structures: Annotated[list[Structure], AtMost(MAX_ENTRIES)] | None = None
    triggers: Annotated[list[str], AtMost(MAX_ENTRIES)] | None = None

    def tag(self) -> Object:
        """Return the structural tag, in the form in which it was given."""
        if self.structures is None:
            return {"type": self.type, "format": self.format}
        structures = [{"begin": each.begin, "schema": each.schema_, "end": each.end} for each in self.structures]
        return {"type": self.type, "structures": structures, "triggers": self.triggers or []}


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat, Field(discriminator="type")
]


class StructuredOutputs(RequestBody):
    """vLLM's structured outputs: exactly one of the constraints."""

    json_: Schema | None = Field(alias="json", default=None)
    regex: Source | None = None
    choice: Choices | None = None
    grammar: Source | None = None
    json_object: bool | None = None
    structural_tag: Source | None = None
    disable_any_whitespace: False_ = False
    disable_additional_properties: bool = False
    whitespace_pattern: None = None


CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
SCHEMA_FIELD = "response_format.json_schema.schema"
GRAMMAR_FIELDS = frozenset({  # names with which errors about a grammar begin
    "response_format", SCHEMA_FIELD, *(f"structured_outputs.{name}" for name in CONSTRAINTS),
    "tools", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "regex", "ebnf", "json_schema",
})  # fmt: skip


PLAIN_FIELDS: Sequence[tuple[str, GrammarKind]] = (
    ("guided_json", GrammarKind.JSON_SCHEMA),
    ("guided_regex", GrammarKind.REGEX),
    ("guided_choice", GrammarKind.CHOICE),
    ("guided_grammar", GrammarKind.EBNF),
    ("regex", GrammarKind.REGEX),
    ("ebnf", GrammarKind.EBNF),
    ("json_schema", GrammarKind.JSON_SCHEMA),
)
REQUEST_FIELDS = frozenset({"response_format", "structured_outputs", *(name for name, _ in PLAIN_FIELDS)})


class StructuredOutputFields(NeutralFields):
    """Fields that constrain the output, at most one of them."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Source | None = None
    guided_choice: Choices | None = None
    guided_grammar: Source | None = None
    guided_decoding_backend: Literal["auto", "xgrammar"] | None = None
    guided_whitespace_pattern: None = None
    regex: Source | None = None
    ebnf: Source | None = None
    json_schema: Schema | None = None

    def grammar(self) -> Grammar | None:
        """Return the grammar of the output, which is not validated. Raises FieldError if there are several."""
        if self.model_fields_set.isdisjoint(REQUEST_FIELDS):
            return None
        found = [*self._plain_grammars(), *self._of_response_format(), *self._of_structured_outputs()]
        if len(found) > 1:
            names = " and ".join(grammar.field for grammar in found[:2])
            raise FieldError(found[1].field, f"{names} must not both be given")
        return found[0] if found else None

    def _plain_grammars(self) -> list[Grammar]:
        return _grammars("", PLAIN_FIELDS, lambda name: getattr(self, name))

    def _of_response_format(self) -> list[Grammar]:
        match self.response_format:
            case JsonObjectFormat():
                return [Grammar(GrammarKind.JSON_OBJECT, field="response_format")]
            case JsonSchemaFormat(json_schema=schema):
                source = _text(schema.schema_, SCHEMA_FIELD)
                return [Grammar(GrammarKind.JSON_SCHEMA, source, schema.strict is False, SCHEMA_FIELD)]
            case StructuralTagFormat() as tag:
                source = _text(tag.tag(), "response_format")
                return [Grammar(GrammarKind.STRUCTURAL_TAG, source, field="response_format")]
            case _:
                return []

    def _of_structured_outputs(self) -> list[Grammar]:
        given = self.structured_outputs
        if given is None:
            return []
        values = {**given.__dict__, "json": given.json_}
        fields: Sequence[tuple[str, GrammarKind]] = (
            ("json", GrammarKind.JSON_SCHEMA),
            ("regex", GrammarKind.REGEX),
            ("choice", GrammarKind.CHOICE),
            ("grammar", GrammarKind.EBNF),
            ("structural_tag", GrammarKind.STRUCTURAL_TAG),
        )
        found = _grammars("structured_outputs.", fields, values.__getitem__)
        if given.json_object:
            found.append(Grammar(GrammarKind.JSON_OBJECT, field="structured_outputs.json_object"))
        if not found:
            raise FieldError("structured_outputs", f"structured_outputs needs one of {', '.join(CONSTRAINTS)}")
        return found


def _grammars(
    prefix: str, fields: Sequence[tuple[str, GrammarKind]], value_of: Callable[[str], object]
) -> list[Grammar]:
    """Return the grammars of the fields that are given."""
    given = [(f"{prefix}{name}", kind, value_of(name)) for name, kind in fields]
    return [Grammar(kind, _text(value, field), field=field) for field, kind, value in given if value is not None]


def _text(value: object, field: str) -> str:
    """Return a text unchanged, and JSON as text. Raises FieldError if it is nested too deeply."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, separators=(",", ":"))
    except RecursionError:
        raise FieldError(field, f"{field}: it is nested too deeply") from None
