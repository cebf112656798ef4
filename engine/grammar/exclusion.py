"""Exclusion of `oneOf`'s schemas, as far as types, constants and one required property show."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

TYPES_OF: Mapping[type, Sequence[str]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    str: ("string",),
    type(None): ("null",),
    list: ("array",),
    dict: ("object",),
}


@dataclass(frozen=True, slots=True)
class _Facts:
    """Facts about the values that match a schema, as far as the schema shows them."""

    types: frozenset[str]  # empty if they are not known
    constants: frozenset[Hashable]  # the only values that match; empty if there are others
    properties: Mapping[str, object]  # schemas of the properties that it both requires and defines


def exclude_each_other(schemas: Sequence[object]) -> bool:
    """Return whether no value can match two of the schemas; False if that is not certain.

    Takes time linear in the size of the schemas: objects must differ in the same property, not pair by pair.
    """
    if len(schemas) < 2:
        return True
    facts = [_facts(schema) for schema in schemas]
    constants: set[Hashable] = set()
    constant_types: set[str] = set()
    types: set[str] = set()  # of the other schemas
    objects: list[Mapping[str, object]] = []
    for each in facts:
        if not each.types:
            return False
        if each.constants:
            if not constants.isdisjoint(each.constants):
                return False
            constants |= each.constants
            constant_types |= each.types
        elif each.types == {"object"} and (objects or "object" not in types):
            objects.append(each.properties)
            types.add("object")
        elif types.isdisjoint(each.types):
            types |= each.types
        else:
            return False
    if not types.isdisjoint(constant_types):
        return False
    return len(objects) < 2 or _differ_in_a_property(objects)


def _differ_in_a_property(objects: Sequence[Mapping[str, object]]) -> bool:
    shared = set(objects[0]).intersection(*objects[1:])
    return any(exclude_each_other([properties[name] for properties in objects]) for name in shared)


def _facts(schema: object) -> _Facts:
    if not isinstance(schema, dict):
        return _Facts(frozenset(), frozenset(), {})
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        types = frozenset(name for value in values for name in _types_of(value))
        return _Facts(types, frozenset(map(_key, values)), {})
    kind = schema.get("type")
    names = frozenset(each for each in (kind if isinstance(kind, list) else [kind]) if isinstance(each, str))
    required, named = schema.get("required"), schema.get("properties")
    properties: dict[str, object] = {}
    if isinstance(required, list) and isinstance(named, dict):
        properties = {name: named[name] for name in required if isinstance(name, str) and name in named}
    return _Facts(names | {"integer"} if "number" in names else names, frozenset(), properties)


def _types_of(value: object) -> Sequence[str]:
    """Return the types of a value. `1.0` is an integer, as in JSON Schema."""
    return TYPES_OF[int] if isinstance(value, float) and value.is_integer() else TYPES_OF[type(value)]


def _key(value: object) -> Hashable:
    """Return equal keys for equal JSON values: numbers are equal by value, and not equal to booleans."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        return ("array", *map(_key, value))
    if isinstance(value, dict):
        return ("object", frozenset((name, _key(inner)) for name, inner in value.items()))
    assert value is None or isinstance(value, str | int | float)
    return value
