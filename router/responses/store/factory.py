"""The store of a router, by its options."""

from baton.router.config import RouterConfig
from baton.router.responses.store.base import TENANT_SHARE, ResponseStore, StoreLimits
from baton.router.responses.store.memory_store import MemoryStore
from baton.settings.registry_url import parse_registry_url


def open_store(config: RouterConfig) -> ResponseStore | None:
    """Return the store, without a connection yet; None: the router stores no responses (see `off_reason`)."""
    if off_reason(config) is not None:
        return None
    share = TENANT_SHARE if config.needs_key else 1
    limits = StoreLimits(
        ttl_s=config.response_store_ttl_s,
        max_bytes=config.response_store_bytes,
        tenant_bytes=config.response_store_bytes // share,
    )
    if config.registry is None:
        return MemoryStore(limits)
    from baton.router.responses.store.redis_store import RedisStore  # its client is heavy, and few routers need it

    return RedisStore(parse_registry_url(config.registry), limits)


def off_reason(config: RouterConfig) -> str | None:
    """Return why the router stores no responses; None: it stores them."""
    if config.response_store_bytes == 0:
        return "this server stores no responses (--response-store-bytes is 0)"
    if config.processes > 1 and config.registry is None:
        return "this server stores no responses: its router processes can share them only in Redis (--registry)"
    return None
