"""The API key with which a cluster asks its own router about the workers."""

from collections.abc import Mapping
from dataclasses import replace

from baton.deployment.local.cluster_config import ClusterSettings
from baton.router.auth.api_key import hidden, new_key
from baton.settings.values import Value


def with_watch_key(settings: ClusterSettings) -> tuple[ClusterSettings, str | None]:
    """Return settings whose router takes one more key, and that key; None if the router asks for none.

    The key is held in this process alone; the router gets its digest.
    """
    given = settings.router.get("api_key")
    keys = given if isinstance(given, tuple) else ()
    if given == () or (given is None and settings.router.get("api_keys_file") is None):
        return settings, None  # an empty key is refused by the router
    key = new_key()
    router: Mapping[str, Value] = {**settings.router, "api_key": (*keys, hidden(key))}
    return replace(settings, router=router), key
