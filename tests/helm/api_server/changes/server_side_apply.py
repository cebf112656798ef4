"""Server-side apply: fields belong to whoever applied them, and what somebody no longer applies goes."""

import copy
import json
from collections.abc import Container

from tests.helm.api_server.changes.field_sets import MISSING, element, fields_of, repeated
from tests.helm.api_server.changes.managed_fields import ManagedFields, Manager
from tests.helm.api_server.errors import Json
from tests.helm.api_server.list_shapes import Path, is_one_value, is_set, list_keys


class Conflicts(Exception):
    """Others own fields that were applied with another value."""

    def __init__(self, by_manager: dict[Manager, list[Path]]) -> None:
        self.by_manager = by_manager
        told = [
            f'conflict with "{manager.name}"'
            + (f" with subresource {manager.subresource!r}" if manager.subresource else "")
            + f": {', '.join(map(dotted, paths))}"
            for manager, paths in by_manager.items()
        ]
        num_paths = sum(map(len, by_manager.values()))
        super().__init__(f"Apply failed with {num_paths} conflict{'s' * (num_paths > 1)}: {'; '.join(told)}")

    def causes(self) -> list[Json]:
        """For the answer's details."""
        return [
            {"reason": "FieldManagerConflict", "message": f'conflict with "{manager.name}"', "field": dotted(path)}
            for manager, paths in self.by_manager.items()
            for path in paths
        ]


def applied(live: Json, wanted: Json, manager: Manager, force: bool) -> tuple[Json, ManagedFields]:
    """The object, and who then owns what. Raises Conflicts unless `force` takes the fields away,
    and ValueError if a list has an item twice."""
    managed = ManagedFields.of(live)
    if twice := repeated(wanted):
        raise ValueError(f"{dotted(twice[0])}: duplicate entries")
    is_there, want = fields_of(live), fields_of(wanted)
    differs = {path for path, value in want.items() if path in is_there and is_there[path] != value}
    lost = {other: sorted(paths & differs) for other, paths in managed.others(manager).items()}
    lost = {other: paths for other, paths in lost.items() if paths}
    if lost and not force:
        raise Conflicts(lost)
    within = {path[:size] for path in want for size in range(len(path))}
    dropped = managed.fields(manager) - want.keys() - within
    for paths in managed.others(manager).values():
        dropped -= paths
    merged = _merge(live, wanted, ())
    assert isinstance(merged, dict)
    others = [path for paths in managed.others(manager).values() for path in paths]
    items = [path[:-1] for path in dropped if path[-1] == "."]
    for item in items:  # first: without the fields that tell it apart, none could be found
        if not any(path[: len(item)] == item for path in others):
            _drop(merged, item, (), want)
    for path in dropped:
        if path[-1] != ".":
            _drop(merged, path, (), want)
    return merged, managed.taken(manager, differs).set(manager, want)


def _merge(live: object, wanted: object, path: Path) -> object:
    if isinstance(live, dict) and isinstance(wanted, dict) and not is_one_value(path):
        merged = dict(live)
        for name, value in wanted.items():
            merged[name] = _merge(live.get(name, MISSING), value, (*path, f"f:{name}"))
        return merged
    if isinstance(live, list) and isinstance(wanted, list):
        if is_set(path):
            return live + [each for each in wanted if each not in live]
        if keys := list_keys(path):
            items = {element(each, keys): each for each in live}
            for each in wanted:
                at = element(each, keys)
                items[at] = _merge(items.get(at, {}), each, (*path, at))
            return list(items.values())
    return copy.deepcopy(wanted)


def _drop(within: Json, path: Path, above: Path, kept: Container[Path]) -> None:
    """Takes the field at `path` away, and what is empty then unless it is `kept`."""
    name, rest = path[0][2:], path[1:]
    if name not in within:
        return
    below, place = within[name], (*above, path[0])
    if not rest:
        del within[name]
        return
    if isinstance(below, list):
        _drop_item(below, rest, place, kept)
    elif isinstance(below, dict):
        _drop(below, rest, place, kept)
    if not below and place not in kept:
        del within[name]


def _drop_item(items: list[Json], path: Path, place: Path, kept: Container[Path]) -> None:
    at, rest = path[0], path[1:]
    if at.startswith("v:"):
        items[:] = [each for each in items if json.dumps(each) != at[2:]]
        return
    keys = list_keys(place) or ()
    for item in list(items):
        if element(item, keys) == at:
            if rest:
                _drop(item, rest, (*place, at), kept)
            else:
                items.remove(item)


def dotted(path: Path) -> str:
    """For people: .spec.template.spec.containers[name="a"].image"""
    text = ""
    for each in path:
        if each.startswith("f:"):
            text += f".{each[2:]}"
        elif each.startswith("k:"):
            text += "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(each[2:]).items()) + "]"
    return text
