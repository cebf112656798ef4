"""The kinds of objects that are served."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.helm.api_server.errors import Json, no_such_path

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class ResourceType:
    """One kind, as discovery names it."""

    group: str  # empty: core
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    has_status: bool = False
    has_scale: bool = False
    short_names: tuple[str, ...] = ()
    is_custom: bool = False  # from a CustomResourceDefinition

    @property
    def api_version(self) -> str:
        """As objects have it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """As messages have it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def subresources(self) -> tuple[str, ...]:
        """What hangs below an object."""
        return ("status",) * self.has_status + ("scale",) * self.has_scale


def of_crd(crd: Json) -> Iterator[ResourceType]:
    """What a CustomResourceDefinition adds: its stored version."""
    spec = crd["spec"]
    names = spec["names"]
    for version in spec["versions"]:
        if version.get("storage"):
            below = version.get("subresources", {})
            yield ResourceType(
                spec["group"],
                version["name"],
                names["kind"],
                names["plural"],
                spec["scope"] == "Namespaced",
                "status" in below,
                "scale" in below,
                tuple(names.get("shortNames", ())),
                is_custom=True,
            )


class ResourceTypes:
    """Owns the table of what is served."""

    def __init__(self, types: Iterable[ResourceType]) -> None:
        self._by_place = {(each.group, each.version, each.plural): each for each in types}

    def __iter__(self) -> Iterator[ResourceType]:
        return iter(self._by_place.values())

    def add(self, added: ResourceType) -> None:
        """Serves one more."""
        self._by_place[added.group, added.version, added.plural] = added

    def at(self, group: str, version: str, plural: str) -> ResourceType:
        """Raises ApiError if nothing is served there."""
        try:
            return self._by_place[group, version, plural]
        except KeyError:
            raise no_such_path() from None

    def of_kind(self, kind: str) -> ResourceType:
        """Raises LookupError if no such kind is served."""
        for each in self:
            if each.kind == kind:
                return each
        raise LookupError(f"no kind {kind!r} is served here")
