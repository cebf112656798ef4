"""Comparison of our definitions of custom resources with those that their projects release.

Ours may know fewer fields. Of Kubernetes' own types only the place is compared: released definitions repeat the types
of one version of Kubernetes, ours refer to those of the cluster's version.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.helm.schema.custom_resources import Manifest, schemas
from tests.helm.schema.structural_schemas import Schema


@dataclass(frozen=True, slots=True)
class Field:
    """A field of ours, and the same field in the release."""

    path: str
    ours: Schema
    released: Schema | None  # None: unknown


def fields(ours: Manifest, released: Manifest) -> Iterator[Field]:
    """Yield all fields of our definition."""
    theirs = {f"{api_version}/{kind}": schema for api_version, kind, schema in schemas(released)}
    for api_version, kind, schema in schemas(ours):
        name = f"{api_version}/{kind}"
        found = theirs[name]["properties"].get("spec", {}) if name in theirs else None
        yield from _below(f"{name} spec", schema["properties"]["spec"], found)


def fault(field: Field) -> str | None:
    """Return how our definition allows what the release refuses; None if it does not, or if the field is unknown."""
    ours, theirs = field.ours, field.released
    if theirs is None:
        return None
    expected = "object" if "$ref" in ours else _type(ours)
    if expected != _type(theirs):
        return f"{field.path}: of type {_type(theirs)} in the release, but {expected} in ours"
    if "$ref" in ours:
        return None
    allowed = set(theirs.get("enum", ()))
    if allowed and not set(ours.get("enum", ["anything"])) <= allowed:
        return f"{field.path}: one of {', '.join(sorted(allowed))} in the release, but ours allows more"
    required = {name for name in theirs.get("required", ()) if "default" not in theirs["properties"].get(name, {})}
    if missing := required - set(ours.get("required", ())):
        return f"{field.path}: {', '.join(sorted(missing))} required in the release, but not in ours"
    return None


def _below(path: str, ours: Schema, released: Schema | None) -> Iterator[Field]:
    """Yield a field and those below it. An unknown field has none."""
    yield Field(path, ours, released)
    if released is None or released.get("x-kubernetes-preserve-unknown-fields"):
        return
    for name, each in ours.get("properties", {}).items():
        yield from _below(f"{path}.{name}", each, released.get("properties", {}).get(name))
    for key, label in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(ours.get(key), dict):
            yield from _below(f"{path}{label}", ours[key], released.get(key))


def _type(schema: Schema) -> str | None:
    return "int-or-string" if schema.get("x-kubernetes-int-or-string") else schema.get("type")
