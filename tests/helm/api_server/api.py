"""What can be done to objects: the verbs, without HTTP."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.helm.api_server.changes.json_patch import PatchFailed, merged, patched
from tests.helm.api_server.changes.managed_fields import ManagedFields, Manager, after_update
from tests.helm.api_server.changes.server_side_apply import Conflicts, applied
from tests.helm.api_server.changes.strategic_merge import strategically_merged
from tests.helm.api_server.errors import ApiError, Json, already_exists, bad_request, conflict, invalid, not_found
from tests.helm.api_server.garbage import Garbage
from tests.helm.api_server.objects import as_stored, born, is_same, now, succeeded
from tests.helm.api_server.resource_types import ResourceType, ResourceTypes
from tests.helm.api_server.store import ObjectKey, Store

JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
PATCHES: Mapping[str, Callable[[Json, Any], Any]] = {
    JSON_PATCH: patched,
    MERGE_PATCH: merged,
    STRATEGIC: strategically_merged,
}
# Raises ValueError for an object that is not what its kind says, or may not become so from what it was (None: nothing).
Validate = Callable[[Json, Json | None], None]


@dataclass(frozen=True, slots=True)
class Writing:
    """How something is to be written."""

    manager: str = "unknown"
    dry_run: bool = False
    force: bool = False
    subresource: str = ""


@dataclass
class Api:
    """Owns the rules by which objects change; every method raises ApiError with the answer that says why not."""

    types: ResourceTypes
    validate: Validate
    store: Store = field(default_factory=Store)

    def get(self, key: ObjectKey) -> Json:
        """The object."""
        found = self.store.get(key)
        if found is None:
            raise not_found(key.type.full_name, key.name)
        return found

    def create(self, of: ResourceType, namespace: str, body: Json, how: Writing) -> Json:
        """The object as it now is."""
        self._check_kind(of, body)
        if body.get("metadata", {}).get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        made = born(of, namespace, as_stored(of, body))
        key = ObjectKey(of, namespace if of.namespaced else "", made["metadata"]["name"])
        self._check_namespace(key)
        if self.store.get(key) is not None:
            raise already_exists(of.full_name, key.name)
        made["metadata"].pop("managedFields", None)
        managed = after_update(None, made, Manager(how.manager))
        return self._written(key, None, made, managed, how)

    def update(self, key: ObjectKey, body: Json, how: Writing) -> Json:
        """The object as it now is, with `body` in the place of what it was."""
        self._check_kind(key.type, body)
        live = self.get(key)
        self._check_version(key, live, body)
        new = succeeded(live, as_stored(key.type, body), key.type, how.subresource)
        new["metadata"].setdefault("managedFields", live["metadata"].get("managedFields", []))
        managed = after_update(live, new, Manager(how.manager, "Update", how.subresource))
        return self._written(key, live, new, managed, how)

    def patch(self, key: ObjectKey, patch: Any, content_type: str, how: Writing) -> Json:
        """The object as it now is."""
        if content_type == APPLY:
            return self._apply(key, patch, how)
        if content_type not in PATCHES or (content_type == STRATEGIC and key.type.is_custom):
            raise ApiError(415, "UnsupportedMediaType", f"{content_type} is no kind of patch for {key.type.full_name}")
        try:
            new = PATCHES[content_type](self.get(key), patch)
        except PatchFailed as error:
            raise invalid(key.type.kind, key.name, str(error)) from error
        return self.update(key, new, how)

    def _apply(self, key: ObjectKey, wanted: Json, how: Writing) -> Json:
        self._check_kind(key.type, wanted)
        if wanted["metadata"].get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        wanted = as_stored(key.type, wanted)
        if key.type.has_status and how.subresource != "status":
            wanted.pop("status", None)
        live = self.store.get(key)
        if live is None:
            self._check_namespace(key)
        else:
            self._check_version(key, live, wanted)
        manager = Manager(how.manager, "Apply", how.subresource)
        try:
            new, managed = applied(live or {"metadata": {}}, wanted, manager, how.force)
        except Conflicts as error:
            raise ApiError(409, "Conflict", str(error), error.causes()) from error
        except ValueError as error:
            raise invalid(key.type.kind, key.name, str(error)) from error
        new = succeeded(live, new, key.type, how.subresource) if live else born(key.type, key.namespace, new)
        return self._written(key, live, new, managed, how)

    def delete(self, key: ObjectKey, options: Json, dry_run: bool = False) -> Json:
        """The object as it was, or as it is while finalizers hold it."""
        live = self.get(key)
        for name, value in (options.get("preconditions") or {}).items():
            if live["metadata"].get(name) != value:
                raise conflict(key.type.full_name, key.name, f"the {name} in the precondition ({value}) does not match")
        if dry_run:
            return live
        if live["metadata"].get("finalizers"):
            live["metadata"].setdefault("deletionTimestamp", now())
            return self.store.put(key, live)
        return Garbage(self.store).removed(key, options.get("propagationPolicy") or "Background")

    def _written(self, key: ObjectKey, live: Json | None, new: Json, managed: ManagedFields, how: Writing) -> Json:
        new["metadata"]["managedFields"] = managed.written(key.type.api_version, now())
        if live is not None and is_same(live, new):
            return live
        try:
            self.validate(new, live)
        except ValueError as error:
            raise invalid(key.type.kind, key.name, str(error)) from error
        if how.dry_run:
            return {**new, "metadata": {**new["metadata"], "resourceVersion": str(self.store.version)}}
        written = self.store.put(key, new)
        if written["metadata"].get("deletionTimestamp") and not written["metadata"].get("finalizers"):
            Garbage(self.store).removed(key, "Background")
        return written

    def _check_kind(self, of: ResourceType, body: Json) -> None:
        said = (body.get("apiVersion"), body.get("kind"))
        if said != (of.api_version, of.kind):
            raise bad_request(f"the object is {said[0]} {said[1]}, but here are {of.api_version} {of.kind}")

    def _check_namespace(self, key: ObjectKey) -> None:
        if key.type.namespaced and self.store.get(self._namespace_key(key.namespace)) is None:
            raise not_found("namespaces", key.namespace)

    def _namespace_key(self, name: str) -> ObjectKey:
        return ObjectKey(self.types.of_kind("Namespace"), "", name)

    def _check_version(self, key: ObjectKey, live: Json, body: Json) -> None:
        version = body.get("metadata", {}).get("resourceVersion")
        if version and version != live["metadata"]["resourceVersion"]:
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise conflict(key.type.full_name, key.name, why)
        uid = body.get("metadata", {}).get("uid")
        if uid and uid != live["metadata"]["uid"]:
            raise conflict(key.type.full_name, key.name, f"Precondition failed: UID in precondition: {uid}")
