"""Definitions of custom resources: those of crds/, or released ones where BATON_CRDS names a directory of them."""

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from tests.helm.schema.structural_schemas import Schema

CRDS = Path(__file__).parents[1] / "crds"
DEFINITIONS = "https://kubernetes.io/api/_definitions.json"  # as its file calls itself
OBJECT_META = {"$ref": f"{DEFINITIONS}#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}

Manifest = dict[str, Any]


@lru_cache(maxsize=1)
def definitions() -> tuple[Manifest, ...]:
    """All CustomResourceDefinitions, a released one instead of ours."""
    directory = os.environ.get("BATON_CRDS")
    if directory is not None and not Path(directory).is_dir():
        raise NotADirectoryError(f"BATON_CRDS: {directory} is no directory")
    return tuple((own() | (released(Path(directory)) if directory else {})).values())


def own() -> dict[str, Manifest]:
    """The definitions of crds/, by name."""
    return {each["metadata"]["name"]: each for file in sorted(CRDS.glob("*.yaml")) for each in _of_file(file)}


def released(directory: Path) -> dict[str, Manifest]:
    """The definitions in a directory's files, by name."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(directory.glob("*.yaml"))]
    objects = [each for text in texts for each in yaml.load_all(text, yaml.CSafeLoader) if each]
    found = [each for each in objects if each.get("kind") == "CustomResourceDefinition"]
    if not found:
        raise ValueError(f"{directory}: there is no CustomResourceDefinition in its *.yaml")
    return {each["metadata"]["name"]: each for each in found}


def schemas(definition: Manifest) -> Iterator[tuple[str, str, Schema]]:
    """API version, kind and schema of what a definition has served."""
    spec = definition["spec"]
    for version in spec["versions"]:
        if version["served"]:
            schema = version["schema"]["openAPIV3Schema"]
            properties = {**schema["properties"], "metadata": OBJECT_META}
            whole = {**schema, "properties": properties, "required": ["apiVersion", "kind", "metadata"]}
            whole["required"] += [name for name in schema.get("required", ()) if name not in whole["required"]]
            yield f"{spec['group']}/{version['name']}", spec["names"]["kind"], whole


def _of_file(file: Path) -> Iterator[Manifest]:
    """What a file of crds/ says, as README.md there tells."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    for kind, told in content["kinds"].items():
        schema = {
            "type": "object",
            "required": ["spec"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": {"type": "object"},
                "spec": _expanded(told["spec"], content.get("types", {})),
                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        }
        yield _definition(content["group"], content["version"], kind, told["plural"], schema)


def _definition(group: str, version: str, kind: str, plural: str, schema: Schema) -> Manifest:
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": names,
            "scope": "Namespaced",
            "versions": [{**served, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def _expanded(schema: Any, types: Schema) -> Any:
    if not isinstance(schema, dict):
        return schema
    if "kubernetes" in schema:
        return {"$ref": f"{DEFINITIONS}#/$defs/io.k8s.{schema['kubernetes']}"}
    if schema.get("type") in types:
        return _expanded(types[schema["type"]], types)
    found = dict(schema)
    for key in ("items", "additionalProperties"):
        if key in schema:
            found[key] = _expanded(schema[key], types)
    if "properties" in schema:
        found["properties"] = {name: _expanded(each, types) for name, each in schema["properties"].items()}
    implied = "object" if "properties" in schema else "string" if "enum" in schema else None
    return {"type": implied, **found} if implied else found
