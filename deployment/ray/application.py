"""Names of applications, unique in a registry that several Ray clusters may share."""

from hashlib import sha256

import ray

NAME_CHARS = 16


def application_name(app_name: str) -> str:
    """Return the name of one of Serve's applications on the connected Ray cluster; "" if there is no connection.

    It stays if the head restarts with its state.
    """
    if not ray.is_initialized():
        return ""
    names = (ray.get_runtime_context().get_session_name(), app_name)
    return f"ray-{sha256('/'.join(names).encode()).hexdigest()[:NAME_CHARS]}"
