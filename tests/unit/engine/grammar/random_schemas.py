"""Random JSON Schemas with the features of those that applications send (Geng et al. 2025, "JSONSchemaBench")."""

import random
from collections.abc import Callable, Mapping
from typing import Any

Schema = dict[str, Any]

NAMES = ("a", "b", "id", "name", "é", "x-y", 'q"', "a b")
TEXTS = ("ab", "", "é", 'say "x"', "a\\b", "line\nbreak", "true", "12")
PATTERNS = (
    "^[a-c]{2,4}$", "[0-9]+", "^(ab|cd)*$", r"^\d{3}-\d{2}$", "a.c", "^x?y+$", "[^a]{1,3}", "^$", r"^\w+@\w+$",
    "(a|b)c",
)  # fmt: skip
FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "hostname", "uri", "duration")
# Members that the checks should refuse, or ignore if they restrict nothing.
RARE: Mapping[str, Callable[[random.Random], Any]] = {
    "not": lambda rng: {"type": "null"},
    "if": lambda rng: {"type": "string"},
    "dependentRequired": lambda rng: {"a": ["b"]},
    "contains": lambda rng: {"type": "integer"},
    "uniqueItems": lambda rng: rng.random() < 0.5,
    "default": lambda rng: 1,
    "examples": lambda rng: [1],
    "deprecated": lambda rng: True,
    "readOnly": lambda rng: True,
    "$comment": lambda rng: "no",
    "nullable": lambda rng: True,
    "minimum": lambda rng: 3,
    "maxLength": lambda rng: 2,
    "minItems": lambda rng: 1,
    "pattern": lambda rng: "^a$",
    "required": lambda rng: ["a"],
    "maxProperties": lambda rng: 1,
    "additionalProperties": lambda rng: rng.choice([True, False, {"type": "integer"}]),
    "items": lambda rng: {"type": "boolean"},
    "multipleOf": lambda rng: 3,
    "enum": lambda rng: [1, "a", None],
    "const": lambda rng: "a",
    "format": lambda rng: "uuid",
    "title": lambda rng: "T",
    "$schema": lambda rng: "https://json-schema.org/draft/2020-12/schema",
}


class RandomSchemas:
    """Generator of schemas from one seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._definitions: list[str] = []

    def schema(self) -> Schema:
        """Return a schema whose root is an object, an array or, rarely, something else."""
        rng = self._rng
        names = [f"d{number}" for number in range(rng.choice((0, 0, 1, 2)))]
        definitions = {}
        for name in names:
            definitions[name] = self._schema(2)
            self._definitions.append(name)
        root = self._object(3) if rng.random() < 0.7 else self._schema(3)
        if definitions:
            root["$defs"] = definitions
        return root

    def _schema(self, depth: int) -> Schema:
        rng = self._rng
        kinds: list[Callable[[int], Schema]] = [self._string, self._number, self._plain, self._values]
        if depth:
            kinds += [self._object, self._object, self._array, self._combined]
        if self._definitions:
            kinds.append(self._reference)
        schema = rng.choice(kinds)(depth - 1)
        if rng.random() < 0.06:
            name = rng.choice(list(RARE))
            schema.setdefault(name, RARE[name](rng))
        return schema

    def _plain(self, _depth: int) -> Schema:
        kinds = ["boolean", "null", "integer", "number", "string"]
        chosen = self._rng.sample(kinds, self._rng.choice((1, 1, 2)))
        return {"type": chosen if len(chosen) > 1 else chosen[0]}

    def _values(self, _depth: int) -> Schema:
        rng = self._rng
        values = [*TEXTS, 0, 1, -5, 2.5, 1e20, None, True, False, [1, "a"], {"a": 1}, {}]
        if rng.random() < 0.4:
            return {"const": rng.choice(values)}
        schema: Schema = {"enum": rng.sample(values, rng.randint(1, 4))}
        if rng.random() < 0.4:
            schema = {"type": "string", "enum": rng.sample(TEXTS, rng.randint(1, 3))}
        return schema

    def _string(self, _depth: int) -> Schema:
        rng, schema = self._rng, {"type": "string"}
        kind = rng.randrange(5)
        if kind == 0:
            schema |= {"pattern": rng.choice(PATTERNS)}
        elif kind == 1:
            schema |= {"format": rng.choice(FORMATS)}
        elif kind == 2:
            least = rng.randint(0, 3)
            schema |= rng.choice(
                ({"minLength": least}, {"maxLength": least + 2}, {"minLength": least, "maxLength": least + 3})
            )
        return schema

    def _number(self, _depth: int) -> Schema:
        rng = self._rng
        schema: Schema = {"type": rng.choice(("integer", "integer", "number"))}
        low = rng.choice((-1000, -7, -1, 0, 1, 3, 99, 2.5, -0.5, 12.25))
        high = low + rng.choice((0, 1, 2, 10, 1001, 0.5))
        kind = rng.randrange(6)
        if kind in (1, 3):
            schema |= {rng.choice(("minimum", "exclusiveMinimum")): low}
        if kind in (2, 3):
            schema |= {rng.choice(("maximum", "exclusiveMaximum")): high}
        if kind == 4:
            schema |= {"multipleOf": rng.choice((1, 2, 3, 7, 10, 25, 0.5))}
        return schema

    def _array(self, depth: int) -> Schema:
        rng = self._rng
        schema: Schema = {"type": "array"}
        if rng.random() < 0.8:
            schema["items"] = rng.choice((True, False)) if rng.random() < 0.1 else self._schema(depth)
        if rng.random() < 0.25:
            schema["prefixItems"] = [self._schema(depth) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.5:
            schema["minItems"] = rng.randint(0, 3)
        if rng.random() < 0.5:
            schema["maxItems"] = schema.get("minItems", 0) + rng.randint(0, 3)
        return schema

    def _object(self, depth: int) -> Schema:
        rng = self._rng
        schema: Schema = {"type": "object"}
        names = rng.sample(NAMES, rng.randint(0, 4))
        if names:
            schema["properties"] = {name: self._schema(depth) for name in names}
            if rng.random() < 0.7:
                schema["required"] = rng.sample(names, rng.randint(0, len(names)))
        if rng.random() < 0.3:
            schema["additionalProperties"] = rng.choice((True, False)) if rng.random() < 0.7 else self._schema(depth)
        if rng.random() < 0.1:
            schema["patternProperties"] = {rng.choice(("^x_", "^[a-c]+$", "id$")): self._schema(depth)}
        if rng.random() < 0.1:
            schema["propertyNames"] = rng.choice(({"pattern": "^[a-d]{1,3}$"}, {"maxLength": 3}, {"enum": ["a", "zz"]}))
        if rng.random() < 0.15:
            schema["minProperties"] = rng.randint(0, 3)
        if rng.random() < 0.15:
            schema["maxProperties"] = schema.get("minProperties", 0) + rng.randint(0, 3)
        return schema

    def _combined(self, depth: int) -> Schema:
        name = self._rng.choice(("anyOf", "anyOf", "oneOf", "allOf"))
        return {name: [self._schema(depth) for _ in range(1 if name == "allOf" else self._rng.randint(1, 3))]}

    def _reference(self, _depth: int) -> Schema:
        return {"$ref": f"#/$defs/{self._rng.choice(self._definitions)}"}
