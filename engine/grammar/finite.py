"""Schemas that nothing finite matches, because each of their values would contain another value of theirs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from baton.engine.grammar.place import Place

Schema = Mapping[str, object]


def check_finite(root: object, schemas: Iterable[tuple[Place, object]]) -> None:
    """Raise ValueError if no finite value matches the schema `root`; `schemas` are those in it, with their places.

    A schema is finite once all, or one, of the schemas that it needs are: each is counted down once, so the time is
    linear.
    """
    by_id = {id(each): (place, each) for place, each in schemas if isinstance(each, dict)}
    users: defaultdict[int, list[int]] = defaultdict(list)
    num_missing: dict[int, int] = {}
    finite: list[int] = []
    for key, (_, schema) in by_id.items():
        needed, is_one_enough = _needed(schema, root)
        unknown = [each for each in needed if id(each) in by_id]
        if len(unknown) < len(needed) and is_one_enough:
            unknown = []  # true and false are finite
        num_missing[key] = min(len(unknown), 1) if is_one_enough else len(unknown)
        if not num_missing[key]:
            finite.append(key)
        for each in unknown:
            users[id(each)].append(key)
    while finite:
        for user in users[finite.pop()]:
            num_missing[user] -= 1
            if num_missing[user] == 0:
                finite.append(user)
    if num_missing.get(id(root), 0) > 0:
        place, _ = next(by_id[key] for key in by_id if num_missing[key] > 0)
        raise ValueError(f"{str(place) or 'the schema'}: it contains itself without an end; make a property optional")


def _needed(schema: Schema, root: object) -> tuple[list[object], bool]:
    """Return the schemas that every value of a schema needs, and whether one of them is enough."""
    if "$ref" in schema:
        return [_target(str(schema["$ref"]), root)], False
    if "const" in schema or "enum" in schema:
        return [], False
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(options := schema.get(name), list):
            return options, name != "allOf"
    kind = schema.get("type")
    named, required = schema.get("properties"), schema.get("required")
    if kind in ("object", None) and isinstance(named, dict) and isinstance(required, list):
        return [named[name] for name in dict.fromkeys(required) if name in named], False
    least = schema.get("minItems", 0)
    if kind == "array" and isinstance(least, int) and least > 0:
        listed = schema.get("prefixItems")
        first = listed[:least] if isinstance(listed, list) else []
        return [*first, *([schema["items"]] if len(first) < least and "items" in schema else [])], False
    return [], False


def _target(reference: str, root: object) -> object:
    """Return the schema to which a reference points; true if there is none, which the compiler reports."""
    current = root
    for name in reference.split("/")[1:]:
        if isinstance(current, dict) and name in current:
            current = current[name]
        elif isinstance(current, list) and name.isdecimal() and int(name) < len(current):
            current = current[int(name)]
        else:
            return True
    return current
