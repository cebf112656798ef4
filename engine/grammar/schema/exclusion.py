"""Exclusion of `oneOf`'s schemas, as far as types, constants and one required property show."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from baton.engine.grammar.schema.reference import target_of

TYPES_OF: Mapping[type, Sequence[str]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    str: ("string",),
    type(None): ("null",),
    list: ("array",),
    dict: ("object",),
}


# Work behind references, of which few can lead to the same schemas many times.
MAX_DEPTH = 8  # of references to schemas with references
MAX_REFERENCE_CHARS = 512
MAX_FOLLOWED = 1 << 14  # values and names behind references; a schema counts as `SCHEMA_COST` of them
SCHEMA_COST = 8

Schemas = Sequence[tuple[object, int]]  # each with the number of references that led to it


@dataclass(frozen=True, slots=True)
class _Facts:
    """Facts about the values that match a schema, as far as the schema shows them."""

    types: frozenset[str] = frozenset()  # empty if they are not known
    constants: frozenset[Hashable] = frozenset()  # the only values that match; empty if there are others
    properties: Mapping[str, object] = field(default_factory=dict)  # schemas of those that it both requires and defines
    depth: int = 0  # references that led to them


class Exclusion:
    """Comparison of schemas that may refer to others in the schema `root`."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._num_followed = 0

    def holds(self, schemas: Sequence[object]) -> bool:
        """Return whether no value can match two of the schemas; False if that is not certain.

        Takes time linear in the size of the schemas: objects must differ in the same property, not pair by pair.
        """
        return self._holds([(schema, 0) for schema in schemas])

    def _holds(self, schemas: Schemas) -> bool:
        if len(schemas) < 2:
            return True
        constants: set[Hashable] = set()
        constant_types: set[str] = set()
        types: set[str] = set()  # of the other schemas
        objects: list[_Facts] = []
        for schema, depth in schemas:
            each = self._facts(schema, depth)
            if not each.types:
                return False
            if each.constants:
                if not constants.isdisjoint(each.constants):
                    return False
                constants |= each.constants
                constant_types |= each.types
            elif each.types == {"object"} and (objects or "object" not in types):
                objects.append(each)
                types.add("object")
            elif types.isdisjoint(each.types):
                types |= each.types
            else:
                return False
        if not types.isdisjoint(constant_types):
            return False
        return len(objects) < 2 or self._differ_in_a_property(objects)

    def _differ_in_a_property(self, objects: Sequence[_Facts]) -> bool:
        first, *others = objects
        shared = set(first.properties).intersection(*(each.properties for each in others))
        return any(
            self._holds([(each.properties[name], each.depth) for each in objects])
            for name in first.properties
            if name in shared
        )

    def _facts(self, schema: object, depth: int) -> _Facts:
        """Return the facts of a schema, none if its references lead too far or to too much."""
        while isinstance(schema, dict) and "$ref" in schema:
            reference = schema["$ref"]
            if depth == MAX_DEPTH or not isinstance(reference, str) or len(reference) > MAX_REFERENCE_CHARS:
                return _Facts()
            schema, depth = target_of(reference, self._root), depth + 1
        if not isinstance(schema, dict):
            return _Facts()
        return _own_facts(schema, depth) if depth == 0 or self._may_read(schema) else _Facts()

    def _may_read(self, schema: Mapping[str, object]) -> bool:
        """Return whether a schema behind a reference is small enough, and count it."""
        values = _values(schema)
        if any(isinstance(value, list | dict) for value in values):
            return False
        names = [schema.get("required"), schema.get("type")]
        self._num_followed += SCHEMA_COST + len(values) + sum(len(each) for each in names if isinstance(each, list))
        return self._num_followed <= MAX_FOLLOWED


def _own_facts(schema: Mapping[str, object], depth: int) -> _Facts:
    if values := _values(schema):
        types = frozenset(name for value in values for name in _types_of(value))
        return _Facts(types, frozenset(map(_key, values)), depth=depth)
    kind = schema.get("type")
    names = frozenset(each for each in (kind if isinstance(kind, list) else [kind]) if isinstance(each, str))
    required, named = schema.get("required"), schema.get("properties")
    properties: dict[str, object] = {}
    if isinstance(required, list) and isinstance(named, dict):
        properties = {name: named[name] for name in required if isinstance(name, str) and name in named}
    types = names | {"integer"} if "number" in names else names
    return _Facts(types, properties=properties, depth=depth)


def _values(schema: Mapping[str, object]) -> Sequence[object]:
    """Return the only values that match, as far as the schema lists them."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else ()


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
