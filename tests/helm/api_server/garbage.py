"""What goes with an object: what it owns, and what is in a namespace."""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.helm.api_server.errors import Json
from tests.helm.api_server.objects import now
from tests.helm.api_server.store import ObjectKey, Store


@dataclass(frozen=True, slots=True)
class Garbage:
    """Removes objects and what depends on them, as the controllers of a cluster do some moments later."""

    store: Store

    def removed(self, key: ObjectKey, propagation: str) -> Json:
        """What it was. With "Orphan" all that it owns stays, and is nobody's then."""
        gone = self.store.get(key)
        assert gone is not None
        dependents = list(self._dependents(gone["metadata"]["uid"]))
        if propagation == "Foreground":
            self._collect(dependents, gone["metadata"]["uid"])
        gone = self.store.delete(key)
        if propagation == "Orphan":
            self._orphan(dependents, gone["metadata"]["uid"])
        elif propagation == "Background":
            self._collect(dependents, gone["metadata"]["uid"])
        if key.type.kind == "Namespace":
            for each in [each for each in self.store if each.namespace == key.name]:
                self._end(each)
        return gone

    def _dependents(self, uid: str) -> Iterator[ObjectKey]:
        for key in self.store:
            owners = (self.store.get(key) or {})["metadata"].get("ownerReferences") or ()
            if any(owner["uid"] == uid for owner in owners):
                yield key

    def _collect(self, keys: list[ObjectKey], uid: str) -> None:
        for key in keys:
            live = self.store.get(key)
            if live is None:
                continue
            others = [owner for owner in live["metadata"]["ownerReferences"] if owner["uid"] != uid]
            if others:
                live["metadata"]["ownerReferences"] = others
                self.store.put(key, live)
            else:
                self._end(key)

    def _orphan(self, keys: list[ObjectKey], uid: str) -> None:
        for key in keys:
            live = self.store.get(key)
            if live is not None:
                owners = live["metadata"]["ownerReferences"]
                live["metadata"]["ownerReferences"] = [owner for owner in owners if owner["uid"] != uid]
                self.store.put(key, live)

    def _end(self, key: ObjectKey) -> None:
        live = self.store.get(key)
        if live is None:
            return
        if live["metadata"].get("finalizers"):
            live["metadata"].setdefault("deletionTimestamp", now())
            self.store.put(key, live)
        else:
            self.removed(key, "Background")
