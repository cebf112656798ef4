"""What is served, as clients ask before anything else."""

from collections.abc import Iterable

from tests.helm.api_server.errors import Json, no_such_path
from tests.helm.api_server.resource_types import VERBS, ResourceType


def discovered(path: str, types: Iterable[ResourceType], minor: int) -> Json:
    """The document at that path. Raises ApiError if there is none."""
    served = list(types)
    parts = path.strip("/").split("/")
    match parts:
        case ["version"]:
            return {"major": "1", "minor": str(minor), "gitVersion": f"v1.{minor}.0", "platform": "linux/amd64"}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            groups = {each.group: None for each in served if each.group}
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name, served) for name in groups]}
        case ["apis", group] if any(each.group == group for each in served):
            return {"apiVersion": "v1", **_group(group, served)}
        case ["api", version]:
            return _resources("", version, served)
        case ["apis", group, version]:
            return _resources(group, version, served)
        case ["openapi", "v3"]:
            paths = {_place(each): {"serverRelativeURL": f"/openapi/v3/{_place(each)}?hash=1"} for each in served}
            return {"paths": paths}
        case ["openapi", "v3", *place]:
            return _openapi("/".join(place), served, minor)
    raise no_such_path()


def _place(of: ResourceType) -> str:
    return f"apis/{of.group}/{of.version}" if of.group else f"api/{of.version}"


def _group(group: str, served: Iterable[ResourceType]) -> Json:
    names = {each.api_version: each.version for each in served if each.group == group}
    versions = [{"groupVersion": name, "version": version} for name, version in names.items()]
    return {"kind": "APIGroup", "name": group, "versions": versions, "preferredVersion": versions[0]}


def _resources(group: str, version: str, served: Iterable[ResourceType]) -> Json:
    there = [each for each in served if (each.group, each.version) == (group, version)]
    if not there:
        raise no_such_path()
    resources: list[Json] = []
    for each in there:
        named: Json = {"name": each.plural, "singularName": each.kind.lower(), "namespaced": each.namespaced}
        named |= {"kind": each.kind, "verbs": list(VERBS), "shortNames": list(each.short_names)}
        resources.append(named)
        for below in each.subresources:
            of_below: Json = {"name": f"{each.plural}/{below}", "singularName": "", "namespaced": each.namespaced}
            of_below |= {"kind": each.kind, "verbs": ["get", "patch", "update"]}
            if below == "scale":
                of_below |= {"group": "autoscaling", "version": "v1", "kind": "Scale"}
            resources.append(of_below)
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": there[0].api_version,
        "resources": resources,
    }


def _openapi(place: str, served: Iterable[ResourceType], minor: int) -> Json:
    """Enough to say that the server checks fields itself, so that clients leave it to us."""
    there = [each for each in served if _place(each) == place]
    if not there:
        raise no_such_path()
    paths: Json = {}
    for each in there:
        below = f"namespaces/{{namespace}}/{each.plural}" if each.namespaced else each.plural
        kind = {"group": each.group, "version": each.version, "kind": each.kind}
        parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        patch: Json = {"parameters": [parameter], "x-kubernetes-action": "patch"}
        patch |= {"x-kubernetes-group-version-kind": kind, "responses": {"200": {"description": "OK"}}}
        paths[f"/{place}/{below}/{{name}}"] = {"patch": patch}
    info = {"title": "Kubernetes", "version": f"v1.{minor}.0"}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {}}
