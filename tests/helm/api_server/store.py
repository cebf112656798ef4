"""The objects, and all that has happened to them."""

import asyncio
import copy
from collections.abc import Iterator
from dataclasses import dataclass

from tests.helm.api_server.errors import Json
from tests.helm.api_server.resource_types import ResourceType


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """Where an object is."""

    type: ResourceType
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Change:
    """One write: what was before, and what is now; None: nothing."""

    version: int
    key: ObjectKey
    before: Json | None
    now: Json | None


class Store:
    """Owns every object and the order of all writes; lives on one event loop."""

    def __init__(self) -> None:
        self._objects: dict[ObjectKey, Json] = {}
        self._changed = asyncio.Event()
        self.version = 1
        self.oldest_version = 1  # that a watch may start from
        self.changes: list[Change] = []
        self.ended = False

    def get(self, key: ObjectKey) -> Json | None:
        """A copy."""
        return copy.deepcopy(self._objects.get(key))

    def __iter__(self) -> Iterator[ObjectKey]:
        """The keys of all objects, as it was when asked."""
        return iter(list(self._objects))

    def items(self, of: ResourceType, namespace: str = "") -> list[Json]:
        """Copies, in the order of namespace and name; all namespaces if none is named."""
        chosen = [key for key in self._objects if key.type == of and namespace in ("", key.namespace)]
        chosen.sort(key=lambda key: (key.namespace, key.name))
        return [copy.deepcopy(self._objects[key]) for key in chosen]

    def put(self, key: ObjectKey, now: Json) -> Json:
        """Creates or replaces it, with the next resourceVersion."""
        self.version += 1
        written = copy.deepcopy(now)
        written["metadata"]["resourceVersion"] = str(self.version)
        before = self._objects.get(key)
        self._objects[key] = written
        self._tell(Change(self.version, key, before, written))
        return copy.deepcopy(written)

    def delete(self, key: ObjectKey) -> Json:
        """What it was."""
        self.version += 1
        before = self._objects.pop(key)
        self._tell(Change(self.version, key, before, None))
        return copy.deepcopy(before)

    def forget_changes(self) -> None:
        """As etcd does after some minutes: no watch can start from before."""
        self.oldest_version = self.version

    async def next_change(self, num_seen: int) -> None:
        """Waits until there are more changes than that, or there will be no more."""
        while len(self.changes) <= num_seen and not self.ended:
            await self._changed.wait()

    def end(self) -> None:
        """Nobody need wait any longer."""
        self.ended = True
        self._changed.set()

    def _tell(self, change: Change) -> None:
        self.changes.append(change)
        self._changed.set()
        self._changed = asyncio.Event()
