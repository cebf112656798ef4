"""Sets of fields, as `metadata.managedFields` has them."""

import json
from collections.abc import Iterable, Iterator

from tests.helm.api_server.errors import Json
from tests.helm.api_server.list_shapes import Path, is_one_value, is_set, key_of, list_keys

NOBODYS = {  # of metadata: what only the server sets, and what says which object it is
    "name",
    "namespace",
    "generateName",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
}
MISSING = object()


def fields_of(written: Json) -> dict[Path, object]:
    """Every field that can be owned, and its value."""
    found: dict[Path, object] = {}
    for name, value in written.items():
        if name == "metadata":
            value = {key: each for key, each in value.items() if key not in NOBODYS}
            found.update(_leaves(value, ("f:metadata",)) if value else ())
        elif name not in ("apiVersion", "kind"):
            found.update(_leaves(value, (f"f:{name}",)))
    return found


def repeated(written: Json) -> list[Path]:
    """Items that a list has twice though they are told apart by what is the same in both."""
    seen: set[Path] = set()
    again: list[Path] = []
    for name, value in written.items():
        for path, _ in _leaves(value, (f"f:{name}",)):
            if path[-1] == "." and path in seen:
                again.append(path)
            seen.add(path)
    return again


def _leaves(value: object, path: Path) -> Iterator[tuple[Path, object]]:
    if isinstance(value, dict) and value and not is_one_value(path):
        for name, each in value.items():
            yield from _leaves(each, (*path, f"f:{name}"))
        return
    if isinstance(value, list) and is_set(path):
        yield from (((*path, f"v:{json.dumps(each)}"), each) for each in value)
        return
    keys = list_keys(path) if isinstance(value, list) and not path[-1].startswith(("k:", "v:")) else None
    if keys is None or not isinstance(value, list):
        yield path, value
        return
    for item in value:
        key = element(item, keys)
        yield (*path, key, "."), MISSING  # that it is there at all
        for name, each in item.items():
            yield from _leaves(each, (*path, key, f"f:{name}"))


def element(item: Json, keys: tuple[str, ...]) -> str:
    """An item of a list, as part of a path."""
    return "k:" + json.dumps(key_of(item, keys), separators=(",", ":"))


def encode(paths: Iterable[Path]) -> Json:
    """As `fieldsV1`."""
    encoded: Json = {}
    for path in sorted(paths):
        below = encoded
        for each in path:
            below = below.setdefault(each, {})
    return encoded


def decode(encoded: Json, path: Path = ()) -> Iterator[Path]:
    """The leaves of `fieldsV1`."""
    for name, below in encoded.items():
        if below:
            yield from decode(below, (*path, name))
        elif name != "." or (path and path[-1].startswith("k:")):
            yield (*path, name)
