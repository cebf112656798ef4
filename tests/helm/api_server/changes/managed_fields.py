"""Who has set which field of an object."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tests.helm.api_server.changes.field_sets import decode, encode, fields_of
from tests.helm.api_server.errors import Json
from tests.helm.api_server.list_shapes import Path


@dataclass(frozen=True, slots=True)
class Manager:
    """Whoever writes: one program, in one way."""

    name: str
    operation: str = "Update"  # or Apply
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class ManagedFields:
    """What each manager owns of one object."""

    owned: Mapping[Manager, frozenset[Path]] = field(default_factory=dict)

    @classmethod
    def of(cls, written: Json) -> "ManagedFields":
        """As the object's metadata has it."""
        owned: dict[Manager, frozenset[Path]] = {}
        for entry in written["metadata"].get("managedFields") or ():
            if entry:
                manager = Manager(entry["manager"], entry["operation"], entry.get("subresource", ""))
                owned[manager] = frozenset(decode(entry.get("fieldsV1") or {}))
        return cls(owned)

    def fields(self, manager: Manager) -> frozenset[Path]:
        """Nothing, for one that has never written."""
        return self.owned.get(manager, frozenset())

    def others(self, manager: Manager) -> dict[Manager, frozenset[Path]]:
        """All but that one."""
        return {other: paths for other, paths in self.owned.items() if other != manager}

    def taken(self, manager: Manager, paths: Iterable[Path], gone: Iterable[Path] = ()) -> "ManagedFields":
        """What holds when that manager has changed `paths`, and `gone` are no more."""
        changed = frozenset(paths)
        lost = changed | frozenset(gone)
        owned = {other: kept - lost for other, kept in self.owned.items()}
        owned[manager] = owned.get(manager, frozenset()) | changed
        return replace(self, owned={each: kept for each, kept in owned.items() if kept})

    def set(self, manager: Manager, paths: Iterable[Path]) -> "ManagedFields":
        """What holds when that manager owns `paths` and no others."""
        owned = {**self.others(manager), manager: frozenset(paths)}
        return replace(self, owned={each: kept for each, kept in owned.items() if kept})

    def written(self, api_version: str, time: str) -> list[Json]:
        """For the object's metadata."""
        entries: list[Json] = []
        for manager, paths in self.owned.items():
            entry: Json = {"manager": manager.name, "operation": manager.operation, "apiVersion": api_version}
            entry |= {"time": time, "fieldsType": "FieldsV1", "fieldsV1": encode(paths)}
            if manager.subresource:
                entry["subresource"] = manager.subresource
            entries.append(entry)
        return entries


def after_update(live: Json | None, new: Json, manager: Manager) -> ManagedFields:
    """Who owns what when `manager` has put `new` in the place of `live`."""
    before = {} if live is None else fields_of(live)
    now = fields_of(new)
    changed = [path for path, value in now.items() if path not in before or before[path] != value]
    gone = [path for path in before if path not in now]
    return ManagedFields.of(new).taken(manager, changed, gone)
