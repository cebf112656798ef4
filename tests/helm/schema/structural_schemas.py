"""Structural schemas, as definitions of custom resources have them, read as the API server does."""

from copy import deepcopy
from typing import Any

Schema = dict[str, Any]
OPEN = ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource")
LEFT_OUT = ("format", "default", "description", "example")  # JSON Schema's checks have no use for them


def strict(schema: Schema) -> Schema:
    """JSON Schema that refuses fields which the schema does not name; `$ref` stays what it is."""
    found = {key: _inner(key, each) for key, each in schema.items() if key not in LEFT_OUT and not _is_extension(key)}
    if schema.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
    is_object = schema.get("type") == "object" or "properties" in schema
    if is_object and "additionalProperties" not in schema and not any(schema.get(each) for each in OPEN):
        found["additionalProperties"] = False
    if schema.get("nullable"):
        found = {"anyOf": [{"type": "null"}, found]}
    return found


def _is_extension(key: str) -> bool:
    return key.startswith("x-kubernetes-") or key == "nullable"


def _inner(key: str, value: Any) -> Any:
    if key == "properties":
        return {name: strict(each) for name, each in value.items()}
    if key in ("items", "additionalProperties") and isinstance(value, dict):
        return strict(value)
    return value


def defaulted(schema: Schema, value: Any) -> Any:
    """The value with the schema's defaults, as rules and required fields see it."""
    if isinstance(value, list):
        return [defaulted(schema.get("items", {}), each) for each in value]
    if not isinstance(value, dict):
        return value
    properties, more = schema.get("properties", {}), schema.get("additionalProperties")
    whole = {name: deepcopy(each["default"]) for name, each in properties.items() if "default" in each} | value
    rest = more if isinstance(more, dict) else {}
    return {name: defaulted(properties.get(name, rest), each) for name, each in whole.items()}
