"""The shortest values of schemas; none if each value of a schema would contain another value of it."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from baton.engine.grammar.schema.place import Place
from baton.engine.grammar.schema.reference import target_of

Schema = Mapping[str, object]

MAX_ESCAPE = 6  # characters of JSON for one of a text
PLAIN_CHARS = 64  # of a number, a formatted text, or any value
MAX_LENGTH = float(1 << 40)  # lengths above are not distinguished


def check_finite(root: object, schemas: Iterable[tuple[Place, object]]) -> None:
    """Raise ValueError if no finite value matches the schema `root`; `schemas` are those in it, with their places."""
    graph = _Graph(root, schemas)
    graph.run(lambda _: 0.0)
    if isinstance(root, dict) and id(root) not in graph.lengths:
        place, _ = next(each for key, each in graph.by_id.items() if key not in graph.lengths)
        raise ValueError(f"{str(place) or 'the schema'}: it contains itself without an end; make a property optional")


def shortest_length(
    root: object, schemas: Iterable[tuple[Place, object]], pattern_length: Callable[[str], float]
) -> float:
    """Return a bound on the shortest JSON of each of the schemas in `root`, in characters; infinite if unknown.

    pattern_length: such a bound for a regular expression.
    """
    graph = _Graph(root, schemas)
    graph.run(pattern_length)
    if len(graph.lengths) < len(graph.by_id):
        return inf
    return max(graph.lengths.values(), default=PLAIN_CHARS)


@dataclass(slots=True)
class _Needs:
    """Schemas whose values each value of a schema contains."""

    parts: list[tuple[object, int]] = field(default_factory=list)  # schemas, and how often
    is_one_enough: bool = False


class _Graph:
    """Schemas and those that they need.

    A schema has a finite value once all, or one, of the schemas that it needs have: each is counted down once, so the
    time is linear.
    """

    def __init__(self, root: object, schemas: Iterable[tuple[Place, object]]) -> None:
        self.by_id = {id(each): (place, each) for place, each in schemas if isinstance(each, dict)}
        self.lengths: dict[int, float] = {}  # of schemas with a finite value
        self._needs = {key: _needed(schema, root) for key, (_, schema) in self.by_id.items()}

    def run(self, pattern_length: Callable[[str], float]) -> None:
        """Find the lengths."""
        users: defaultdict[int, list[int]] = defaultdict(list)
        num_missing: dict[int, int] = {}
        finite: list[int] = []
        for key, needs in self._needs.items():
            unknown = [part for part, _ in needs.parts if id(part) in self.by_id]
            if len(unknown) < len(needs.parts) and needs.is_one_enough:
                unknown = []  # true and false are finite
            num_missing[key] = min(len(unknown), 1) if needs.is_one_enough else len(unknown)
            if not num_missing[key]:
                finite.append(key)
            for part in unknown:
                users[id(part)].append(key)
        while finite:
            key = finite.pop()
            self.lengths[key] = self._length(key, pattern_length)
            for user in users[key]:
                num_missing[user] -= 1
                if num_missing[user] == 0:
                    finite.append(user)

    def _length(self, key: int, pattern_length: Callable[[str], float]) -> float:
        """Return a bound on the shortest value, once those of what it needs are known."""
        needs, (_, schema) = self._needs[key], self.by_id[key]
        inner = [self._part_length(part) * min(count, MAX_LENGTH) for part, count in needs.parts]
        if needs.is_one_enough:
            inner = [min(inner)] if inner else []
        return min(sum(inner) + _own_length(schema, pattern_length), MAX_LENGTH)

    def _part_length(self, part: object) -> float:
        """Return a bound for a schema that is needed; of those that are no objects, true has any value."""
        return self.lengths.get(id(part), inf if isinstance(part, dict) else PLAIN_CHARS)


def _own_length(schema: Schema, pattern_length: Callable[[str], float]) -> float:
    """Return a bound on the characters of the shortest value, without those of the schemas that it needs."""
    if "const" in schema:
        return len(json.dumps(schema["const"]))
    values = schema.get("enum")
    if isinstance(values, list):
        return min((len(json.dumps(each)) for each in values), default=0)
    length = float(PLAIN_CHARS)
    required, pattern = schema.get("required"), schema.get("pattern")
    if isinstance(required, list):
        length += sum(MAX_ESCAPE * len(name) + PLAIN_CHARS for name in required if isinstance(name, str))
    if isinstance(pattern, str):
        length += MAX_ESCAPE * pattern_length(pattern)
    least_properties = schema.get("minProperties", 0)
    if isinstance(least_properties, int) and least_properties > len(required if isinstance(required, list) else ()):
        return inf  # which of the properties is open
    for name in ("minLength", "minItems"):
        if isinstance(least := schema.get(name, 0), int):
            length += min(MAX_ESCAPE * max(0, least), MAX_LENGTH)
    return length


def _needed(schema: Schema, root: object) -> _Needs:
    """Return the schemas that every value of a schema needs."""
    if "$ref" in schema:
        return _Needs([(target_of(str(schema["$ref"]), root), 1)])
    if "const" in schema or "enum" in schema:
        return _Needs()
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(options := schema.get(name), list):
            return _Needs([(option, 1) for option in options], is_one_enough=name != "allOf")
    kind = schema.get("type")
    named, required = schema.get("properties"), schema.get("required")
    if kind in ("object", None) and isinstance(named, dict) and isinstance(required, list):
        return _Needs([(named[name], 1) for name in dict.fromkeys(required) if name in named])
    least = schema.get("minItems", 0)
    if kind == "array" and isinstance(least, int) and least > 0:
        listed = schema.get("prefixItems")
        first = listed[:least] if isinstance(listed, list) else []
        parts: list[tuple[object, int]] = [(each, 1) for each in first]
        num_further = least - len(first)
        return _Needs([*parts, *([(schema["items"], num_further)] if num_further and "items" in schema else [])])
    return _Needs()
