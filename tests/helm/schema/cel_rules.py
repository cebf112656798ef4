"""The rules of custom resources in CEL (`x-kubernetes-validations`), evaluated as the API server does."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import cel

from tests.helm.schema.structural_schemas import Schema

ABSENT = object()


def broken(schema: Schema, value: Any, old: Any = ABSENT, where: str = "") -> Iterator[str]:
    """What each broken rule says, here and below; `old` is what was there before, for rules of changes.

    Raises RuntimeError for a rule that cannot be evaluated: one that was skipped could be broken.
    """
    for rule in schema.get("x-kubernetes-validations", ()):
        if not _holds(rule, value, old):
            yield f"{where.lstrip('.')}: {rule.get('message') or rule['rule']}"
    for name, inner, each, before in _below(schema, value, old):
        yield from broken(inner, each, before, f"{where}{name}")


def _holds(rule: dict[str, Any], value: Any, old: Any) -> bool:
    if rule.get("optionalOldSelf"):
        raise RuntimeError(f"{rule['rule']}: optionalOldSelf is not known here")
    program = _compiled(rule["rule"])
    known = {"self": value}
    if "oldSelf" in program.variables():
        if old is ABSENT:
            return True  # nothing changes
        known["oldSelf"] = old
    result = program.execute(known)
    if not isinstance(result, bool):
        raise RuntimeError(f"{rule['rule']}: is {result!r}, and neither true nor false")
    return result


@cache
def _compiled(rule: str) -> cel.Program:
    return cel.compile(rule)


def _below(schema: Schema, value: Any, old: Any) -> Iterator[tuple[str, Schema, Any, Any]]:
    """Each part: its name, its schema, itself, and what it was before."""
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        rest = schema.get("additionalProperties")
        for name, each in value.items():
            inner = schema.get("properties", {}).get(name, rest)
            if isinstance(inner, dict):
                yield f".{name}", inner, each, before.get(name, ABSENT)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield f"[{index}]", schema.get("items", {}), each, _same(schema, each, old)


def _same(schema: Schema, item: Any, old: Any) -> Any:
    """The item as it was: only items of a map that is written as a list can be told again."""
    keys = schema.get("x-kubernetes-list-map-keys", ())
    if keys and isinstance(old, list):
        for each in old:
            if all(each.get(key) == item.get(key) for key in keys):
                return each
    return ABSENT
