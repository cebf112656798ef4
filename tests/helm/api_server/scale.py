"""The /scale of an object that has replicas: all that an autoscaler sees of it."""

from typing import Any

from tests.helm.api_server.api import PATCHES, Api, Writing
from tests.helm.api_server.errors import Json, bad_request
from tests.helm.api_server.store import ObjectKey

API_VERSION = "autoscaling/v1"


def scale_of(written: Json) -> Json:
    """What is said of the object there."""
    metadata = {name: written["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
    labels = written["spec"].get("selector", {}).get("matchLabels", {})
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    status = {"replicas": written.get("status", {}).get("replicas", 0), "selector": selector}
    spec = {"replicas": written["spec"].get("replicas", 1)}
    return {"kind": "Scale", "apiVersion": API_VERSION, "metadata": metadata, "spec": spec, "status": status}


def rescaled(api: Api, key: ObjectKey, body: Any, content_type: str | None, how: Writing) -> Json:
    """The new scale. `content_type` is that of a patch; None: `body` is a whole Scale. Raises ApiError."""
    live = api.get(key)
    wanted = body if content_type is None else PATCHES[content_type](scale_of(live), body)
    replicas = wanted["spec"].get("replicas", 0)
    if not isinstance(replicas, int) or replicas < 0:
        raise bad_request(f"spec.replicas is {replicas!r}, but must be a number of 0 or more")
    version = wanted.get("metadata", {}).get("resourceVersion")
    live["spec"]["replicas"] = replicas
    if version:
        live["metadata"]["resourceVersion"] = version
    return scale_of(api.update(key, live, how))
