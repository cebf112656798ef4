"""What the server itself writes into an object."""

import base64
import copy
import secrets
import string
import uuid
from datetime import UTC, datetime

from tests.helm.api_server.errors import Json, invalid
from tests.helm.api_server.resource_types import ResourceType

SERVERS = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "resourceVersion", "name", "namespace")
_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_LEAST = set(string.ascii_lowercase + string.digits + "-.")
LONGEST_NAME = 253
AMOUNTS = {"requests", "limits", "capacity", "allocatable", "overhead"}  # maps of them, by resource


def now() -> str:
    """As objects have times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def without_nulls(value: object) -> object:
    """What is null is not there."""
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def born(of: ResourceType, namespace: str, body: Json) -> Json:
    """A new object from what was sent. Raises ApiError if it has no name that can be one."""
    made = copy.deepcopy(body)
    metadata = made.setdefault("metadata", {})
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"] + "".join(secrets.choice(_NAME_LETTERS) for _ in range(5))
    name = metadata.get("name", "")
    if not name or len(name) > LONGEST_NAME or not set(name) <= _LEAST | set(":" * (of.group.startswith("rbac"))):
        raise invalid(of.kind, name, "metadata.name: a lowercase RFC 1123 subdomain is needed")
    if of.namespaced:
        metadata["namespace"] = namespace
    metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
    if of.has_status:
        made.pop("status", None)
    if of.kind == "Pod":
        made["status"] = {"phase": "Pending"}
    if of.kind == "Namespace":
        made["status"] = {"phase": "Active"}
    return made


def _with_text_amounts(value: object, name: str = "") -> object:
    if isinstance(value, dict):
        return {
            key: str(each) if name in AMOUNTS and isinstance(each, int | float) else _with_text_amounts(each, key)
            for key, each in value.items()
        }
    return [_with_text_amounts(each) for each in value] if isinstance(value, list) else value


def as_stored(of: ResourceType, body: Json) -> Json:
    """What was sent, in the one form that the server keeps: nothing is null, amounts are text, secrets are base64."""
    stored = without_nulls(body)
    if not of.is_custom:
        stored = _with_text_amounts(stored)
    assert isinstance(stored, dict)
    if stored.get("kind") == "Secret" and "stringData" in stored:
        texts: dict[str, str] = stored.pop("stringData")
        encoded = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
        stored["data"] = {**stored.get("data", {}), **encoded}
    return stored


def succeeded(live: Json, new: Json, of: ResourceType, subresource: str) -> Json:
    """What becomes of the object when `new` is sent: only what that subresource may change, and the next generation."""
    if subresource == "status":
        result = {**copy.deepcopy(live), "status": new.get("status", {})}
        result["metadata"]["managedFields"] = new["metadata"].get("managedFields") or []
        return result
    result = copy.deepcopy(new)
    for name in SERVERS:
        if name in live["metadata"]:
            result["metadata"][name] = live["metadata"][name]
        else:
            result["metadata"].pop(name, None)
    if of.has_status:
        result.pop("status", None)
        if "status" in live:
            result["status"] = copy.deepcopy(live["status"])
    if _content(result) != _content(live):
        result["metadata"]["generation"] = live["metadata"].get("generation", 1) + 1
    return result


def is_same(live: Json, new: Json) -> bool:
    """Whether nothing but times has changed."""
    return _timeless(live) == _timeless(new)


def _content(written: Json) -> Json:
    return {name: value for name, value in written.items() if name not in ("metadata", "status")}


def _timeless(written: Json) -> Json:
    metadata = dict(written["metadata"])
    metadata["managedFields"] = [
        {name: value for name, value in entry.items() if name != "time"} for entry in metadata.get("managedFields", ())
    ]
    return {**written, "metadata": metadata}
