"""Names of an application and of its Ray cluster, unique in a registry that several clusters may share."""

from hashlib import sha256

import ray

CLUSTER_CHARS, APPLICATION_CHARS = 16, 8


def cluster_name() -> str:
    """Return the name of the connected Ray cluster; it stays if the head restarts with its state. "": none."""
    if not ray.is_initialized():
        return ""
    return f"ray-{_digest(ray.get_runtime_context().get_session_name())[:CLUSTER_CHARS]}"


def application_name(app_name: str) -> str:
    """Return the name of one of Serve's applications on the connected Ray cluster, which it begins with. "": none."""
    cluster = cluster_name()
    return f"{cluster}-{_digest(app_name)[:APPLICATION_CHARS]}" if cluster else ""


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
