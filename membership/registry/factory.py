"""Registries by URL."""

from collections.abc import Sequence

from baton.membership.registry.base import NamedAddress, Registry, SharedText
from baton.membership.registry.memory import MemoryRegistry
from baton.settings.registry_url import parse_registry_url


def open_registry(url: str | None, addresses: Sequence[str] = ()) -> Registry:
    """The registry at a URL, or without one that of fixed addresses; connects to nothing yet.

    Raises OptionError for a URL that cannot be read.
    """
    if url is None:
        return MemoryRegistry(addresses)
    from baton.membership.registry.redis_registry import RedisRegistry  # its client is heavy, and few processes need it

    return RedisRegistry(parse_registry_url(url))


def open_address(url: str, kind: str, name: str) -> NamedAddress:
    """Where the process of this name is that the registry at a URL has of a kind; connects to nothing yet.

    Raises OptionError for a URL that cannot be read.
    """
    from baton.membership.registry.redis_address import RedisAddress  # its client is heavy, and few processes need it

    return RedisAddress(parse_registry_url(url), kind, name)


def open_shared_text(url: str, name: str) -> SharedText:
    """Return the text of this name on which processes agree at the registry of a URL; connects to nothing yet.

    Raises OptionError for a URL that cannot be read.
    """
    from baton.membership.registry.redis_shared_text import RedisSharedText

    return RedisSharedText(parse_registry_url(url), name)
