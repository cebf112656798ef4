"""Registries by URL."""

from collections.abc import Sequence

from baton.membership.registry.base import NamedAddress, Registry, SharedText
from baton.membership.registry.memory import MemoryRegistry
from baton.settings.registry_url import parse_registry_url


def open_registry(url: str | None, addresses: Sequence[str] = ()) -> Registry:
    """Return the registry at a URL, or one of fixed addresses. Connections open with the first command.

    Raises OptionError for a URL that cannot be read.
    """
    if url is None:
        return MemoryRegistry(addresses)
    from baton.membership.registry.redis_registry import RedisRegistry  # its client is heavy, and few processes need it

    return RedisRegistry(parse_registry_url(url))


def open_address(url: str, kind: str, name: str) -> NamedAddress:
    """Return the named address of a kind of process at a registry. Connections open with the first command.

    Raises OptionError for a URL that cannot be read.
    """
    from baton.membership.registry.redis_address import RedisAddress  # its client is heavy, and few processes need it

    return RedisAddress(parse_registry_url(url), kind, name)


def open_shared_text(url: str, name: str) -> SharedText:
    """Return the shared text of this name at a registry. Connections open with the first command.

    Raises OptionError for a URL that cannot be read.
    """
    from baton.membership.registry.redis_shared_text import RedisSharedText

    return RedisSharedText(parse_registry_url(url), name)
