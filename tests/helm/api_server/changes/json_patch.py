"""JSON patch (RFC 6902) and JSON merge patch (RFC 7386)."""

import copy
from collections.abc import Sequence
from typing import Any

from tests.helm.api_server.errors import Json


class PatchFailed(Exception):
    """An operation does not fit the object."""


def patched(document: Json, operations: Sequence[Json]) -> Json:
    """The object after all operations, in order. Raises PatchFailed, and then nothing is changed."""
    result = copy.deepcopy(document)
    for operation in operations:
        name, path = operation["op"], _parts(operation["path"])
        match name:
            case "add":
                _add(result, path, copy.deepcopy(operation["value"]))
            case "remove":
                _take(result, path)
            case "replace":
                _take(result, path)
                _add(result, path, copy.deepcopy(operation["value"]))
            case "move":
                _add(result, path, _take(result, _parts(operation["from"])))
            case "copy":
                _add(result, path, copy.deepcopy(_at(result, _parts(operation["from"]))))
            case "test":
                if _at(result, path) != operation["value"]:
                    raise PatchFailed(f"testing path {operation['path']} value failed")
            case _:
                raise PatchFailed(f"unexpected kind of operation: {name}")
    return result


def merged(document: object, patch: object) -> object:
    """Maps are merged, null takes a field away, all else is replaced."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def _parts(pointer: str) -> list[str]:
    if not pointer.startswith("/"):
        raise PatchFailed(f"{pointer!r} is no path to a field")
    return [each.replace("~1", "/").replace("~0", "~") for each in pointer[1:].split("/")]


def _at(within: Any, path: Sequence[str]) -> Any:
    for each in path:
        within = within[_index(within, each)]
    return within


def _index(within: Any, name: str, num_beyond: int = 0) -> Any:
    """Of a field or item that is there; `num_beyond` items may be missing."""
    if isinstance(within, list) and name.isdigit() and int(name) < len(within) + num_beyond:
        return int(name)
    if isinstance(within, dict) and (name in within or num_beyond):
        return name
    raise PatchFailed(f"the path has no {name!r} here")


def _add(document: Any, path: Sequence[str], value: Any) -> None:
    within = _at(document, path[:-1])
    if isinstance(within, list):
        within.insert(len(within) if path[-1] == "-" else _index(within, path[-1], 1), value)
    else:
        within[_index(within, path[-1], 1)] = value


def _take(document: Any, path: Sequence[str]) -> Any:
    within = _at(document, path[:-1])
    return within.pop(_index(within, path[-1]))
