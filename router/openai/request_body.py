"""Base class of all request bodies, and field types that pydantic lacks, each with its JSON Schema."""

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_before_validator_function

MAX_EXACT = 1 << 53  # larger integers may be rounded in 64-bit floats
MAX_FIELDS = 256  # of one JSON object; checked before the names, since pydantic makes an error for each unknown one


class RequestBody(BaseModel):
    """A JSON object with strict types and known fields only; null is the same as omitting an optional field."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def without_nulls(cls, body: object) -> object:
        """Drop optional fields that are null."""
        if not isinstance(body, dict):
            return body
        if len(body) > MAX_FIELDS:
            counts = {"num": len(body), "count": MAX_FIELDS}
            raise PydanticCustomError("too_many", "has {num} fields, but at most {count} are accepted", counts)
        if None not in body.values():
            return body
        fields = cls.model_fields
        return {
            name: value
            for name, value in body.items()
            if value is not None or name not in fields or fields[name].is_required()
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add null to the types of optional fields."""
        reference = handler(core_schema)
        described = handler.resolve_ref_schema(reference)
        required = described.get("required", ())
        for name, field in described.get("properties", {}).items():
            if name not in required:
                described["properties"][name] = _or_null(name, field)
        return reference


def _or_null(name: str, schema: JsonSchemaValue) -> JsonSchemaValue:
    null = {"type": "null"}
    own = {key: value for key, value in schema.items() if key != "default"}
    if own.get("title") == name.replace("_", " ").title():  # pydantic's default title, which only repeats the name
        del own["title"]
    alternatives = own["anyOf"] if own.keys() == {"anyOf"} else [own]
    described = {"anyOf": alternatives if null in alternatives else [*alternatives, null]}
    default = schema.get("default")
    return described if default is None else {**described, "default": default}


def unless(name: str, neutral: JsonSchemaValue, other: str, needed: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of bodies in which field `name` requires a value of `other`, unless absent or neutral."""
    return {"anyOf": [{"properties": {name: neutral}}, {"required": [other], "properties": {other: needed}}]}


@dataclass(frozen=True, slots=True)
class OrText:
    """Accepts a string for a list or object field, and converts it with `convert`."""

    convert: Callable[[str], object]
    kind: type[Any] = list
    text_schema: JsonSchemaValue | None = None  # None: any string

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """pydantic: how the field is checked."""

        def check(value: object) -> object:
            if isinstance(value, self.kind):
                return value
            if isinstance(value, str):
                return self.convert(value)
            noun = "a list" if self.kind is list else "an object"
            raise PydanticCustomError("or_text", "must be a string or {noun}", {"noun": noun})

        return no_info_before_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """pydantic: how the field is described."""
        return {"anyOf": [self.text_schema or {"type": "string"}, handler(core_schema)]}


@dataclass(frozen=True, slots=True)
class AtMost:
    """Rejects longer lists and objects before any of their elements is validated."""

    count: int
    title: str | None = None  # of the type in the JSON Schema

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """pydantic: how the field is checked."""

        def check(value: object) -> object:
            if not isinstance(value, str) and isinstance(value, Sized) and len(value) > self.count:
                counts = {"num": len(value), "count": self.count}
                raise PydanticCustomError("too_many", "has {num} entries, but at most {count} are accepted", counts)
            return value

        return no_info_before_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """pydantic: how the field is described."""
        described = handler(core_schema)
        if self.title is not None:
            described = {**described, "title": self.title}
        return {**described, "maxItems" if described.get("type") == "array" else "maxProperties": self.count}


def _whole(value: object) -> object:
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT
    return int(value) if is_whole else value  # type: ignore[call-overload]  # a float


def _boolean(value: object) -> object:
    if type(value) is not bool:  # pydantic's Literal[False] would accept 0, which equals False
        raise PydanticCustomError("bool_type", "Input should be a valid boolean")
    return value


BOOLEAN = BeforeValidator(_boolean)
WHOLE = BeforeValidator(_whole)  # JSON has a single number type, so 1.0 is an integer
