"""Strict schemas of every kind that the chart has: Kubernetes' own, and those of custom resources, with their rules."""

import json
import re
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.helm.schema import cel_rules, custom_resources
from tests.helm.schema.custom_resources import DEFINITIONS
from tests.helm.schema.structural_schemas import Schema, defaulted, strict

SCHEMAS = files("kubernetes_validate") / "kubernetes-json-schema"


class UnknownKind(Exception):
    """Nothing says what objects of this kind may hold."""


class Invalid(Exception):
    """The API server would refuse the object."""


def check(manifest: dict[str, Any], kube_version: str, before: dict[str, Any] | None = None) -> None:
    """Raises Invalid with every fault, or UnknownKind; `kube_version` as v1.34.0, `before` of one that changes."""
    kind, minor = f"{manifest['apiVersion']}/{manifest['kind']}", _minor(kube_version)
    custom = _custom().get(kind)
    whole = manifest if custom is None else defaulted(custom, manifest)
    errors = sorted(_validator(kind, minor).iter_errors(whole), key=lambda each: str(each.absolute_path))
    faults = [f"{'.'.join(map(str, each.absolute_path))}: {each.message[:300]}" for each in errors]
    if custom is not None and not faults:
        old = cel_rules.ABSENT if before is None else defaulted(custom, before)
        faults = list(cel_rules.broken(custom, whole, old))
    if faults:
        name = manifest.get("metadata", {}).get("name")
        raise Invalid(f"{manifest['kind']} {name}: " + "; ".join(faults))


def _minor(kube_version: str) -> str:
    found = re.match(r"v?(\d+\.\d+)", kube_version)
    assert found is not None
    return found[1]


@lru_cache(maxsize=1)
def _custom() -> dict[str, Schema]:
    """Schemas of custom resources, by API version and kind."""
    return {
        f"{api_version}/{kind}": schema
        for definition in custom_resources.definitions()
        for api_version, kind, schema in custom_resources.schemas(definition)
    }


@cache
def _validator(name: str, minor: str) -> Draft202012Validator:
    folder = _folder(minor)
    if name in _custom():
        schema: object = strict(_custom()[name])
    else:
        api_version, _, kind = name.rpartition("/")
        group, _, version = api_version.rpartition("/")
        file_name = f"{kind.lower()}-{group.partition('.')[0]}-{version}" if group else f"{kind.lower()}-{version}"
        file = SCHEMAS / folder / f"{file_name}.json"
        if not file.is_file():
            raise UnknownKind(f"{api_version} {kind}: Kubernetes {minor} has none, and crds/ neither")
        schema = json.loads(file.read_text())
    return Draft202012Validator(schema, registry=_registry(folder))


@cache
def _folder(minor: str) -> str:
    names = [each.name for each in SCHEMAS.iterdir()]
    [found] = [name for name in names if re.fullmatch(rf"v{re.escape(minor)}(\.\d+)?-local-strict", name)]
    return found


@cache
def _registry(folder: str) -> Registry[Any]:
    known = json.loads((SCHEMAS / folder / "_definitions.json").read_text())
    registry: Registry[Any] = Registry()
    return registry.with_resource(DEFINITIONS, Resource.from_contents(known))
