"""Strict schemas of every kind that the chart has: Kubernetes' own, and those of custom resources in crds/."""

import json
import re
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

CRDS = Path(__file__).parent / "crds"
SCHEMAS = files("kubernetes_validate") / "kubernetes-json-schema"
DEFINITIONS = "https://kubernetes.io/api/_definitions.json"  # as its file calls itself
CUSTOM = "https://kubernetes.io/api/custom.json"


class UnknownKind(Exception):
    """Nothing says what objects of this kind may hold."""


class Invalid(Exception):
    """The API server would refuse the object."""


def check(manifest: dict[str, Any], kube_version: str) -> None:
    """Raises Invalid with every fault, or UnknownKind; `kube_version` as v1.34.0."""
    validator = _validator(manifest["apiVersion"], manifest["kind"], _minor(kube_version))
    faults = [f"{'.'.join(map(str, each.absolute_path))}: {each.message[:300]}" for each in _all(validator, manifest)]
    if faults:
        name = manifest.get("metadata", {}).get("name")
        raise Invalid(f"{manifest['kind']} {name}: " + "; ".join(faults))


def _all(validator: Draft202012Validator, manifest: dict[str, Any]) -> list[Any]:
    return sorted(validator.iter_errors(manifest), key=lambda each: str(each.absolute_path))


def _minor(kube_version: str) -> str:
    found = re.match(r"v?(\d+\.\d+)", kube_version)
    assert found is not None
    return found[1]


@cache
def _validator(api_version: str, kind: str, minor: str) -> Draft202012Validator:
    folder = _folder(minor)
    customs = _customs()
    if f"{api_version}/{kind}" in customs:
        schema: object = {"$ref": f"{CUSTOM}#/kinds/{_pointer(f'{api_version}/{kind}')}"}
    else:
        group, _, version = api_version.rpartition("/")
        name = f"{kind.lower()}-{group.partition('.')[0]}-{version}" if group else f"{kind.lower()}-{version}"
        file = SCHEMAS / folder / f"{name}.json"
        if not file.is_file():
            raise UnknownKind(f"{api_version} {kind}: Kubernetes {minor} has none, and crds/ neither")
        schema = json.loads(file.read_text())
    return Draft202012Validator(schema, registry=_registry(folder))


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


@cache
def _folder(minor: str) -> str:
    names = [each.name for each in SCHEMAS.iterdir()]
    [found] = [name for name in names if re.fullmatch(rf"v{re.escape(minor)}(\.\d+)?-local-strict", name)]
    return found


@cache
def _registry(folder: str) -> Registry[Any]:
    definitions = json.loads((SCHEMAS / folder / "_definitions.json").read_text())
    customs = {"$schema": definitions["$schema"], "kinds": _customs()}
    registry: Registry[Any] = Registry()
    return registry.with_resources(
        [(DEFINITIONS, Resource.from_contents(definitions)), (CUSTOM, Resource.from_contents(customs))]
    )


@lru_cache(maxsize=1)
def _customs() -> dict[str, Any]:
    """Schemas of custom resources, by `apiVersion/kind`."""
    kinds: dict[str, Any] = {}
    for file in sorted(CRDS.glob("*.yaml")):
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        for name, spec in content["kinds"].items():
            kinds[f"{content['apiVersion']}/{name}"] = _object(content["apiVersion"], name, _closed(spec, content))
    return kinds


def _object(api_version: str, kind: str, spec: object) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": api_version},
            "kind": {"const": kind},
            "metadata": {"$ref": f"{DEFINITIONS}#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"},
            "spec": spec,
            "status": {"type": "object"},
        },
    }


def _closed(schema: Any, content: dict[str, Any]) -> Any:
    """A schema as crds/ has it: `kubernetes: NAME` is one of Kubernetes' own definitions, `type: NAME` one of the
    file's `types`, and an object has no other properties than those named.
    """
    if isinstance(schema, list):
        return [_closed(each, content) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "kubernetes" in schema:
        return {"$ref": f"{DEFINITIONS}#/$defs/io.k8s.{schema['kubernetes']}"}
    kind = schema.get("type")
    if isinstance(kind, str) and kind in content.get("types", {}):
        return _closed(content["types"][kind], content)
    if "properties" in schema:
        properties = {name: _closed(each, content) for name, each in schema["properties"].items()}
        return {"type": "object", "additionalProperties": False, **schema, "properties": properties}
    return {name: _closed(each, content) for name, each in schema.items()}
