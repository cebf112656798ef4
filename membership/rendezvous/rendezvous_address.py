"""Address of a rendezvous: fixed, or looked up in the registry."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from baton.membership.registry.base import NamedAddress, RegistryLost
from baton.membership.registry.factory import open_address
from baton.membership.rendezvous.config import RendezvousConfig
from baton.settings.names import registered_name
from baton.settings.values import OptionError

KIND = "rendezvous"  # kind of the registry entry


class RendezvousUnknown(Exception):
    """The address of the rendezvous is not available now; the text has the reason."""


class RendezvousAddress(Protocol):
    """Lookup of a group's rendezvous, which may move."""

    async def find(self) -> str:
        """Return the current host:port. Raises RendezvousUnknown."""
        ...

    async def close(self) -> None:
        """Close the connections of the lookup."""
        ...


class FixedAddress:
    """A rendezvous at a fixed address."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def find(self) -> str:
        """Return the host:port."""
        return self._address

    async def close(self) -> None:
        """Do nothing: it has no connections."""


class RegisteredAddress:
    """A rendezvous looked up in the registry."""

    def __init__(self, entry: NamedAddress) -> None:
        self._entry = entry

    async def find(self) -> str:
        """Return the host:port in the registry. Raises RendezvousUnknown."""
        try:
            address = await self._entry.find()
        except RegistryLost as error:
            raise RendezvousUnknown(f"cannot look up {self._entry.name} in the registry: {error}") from error
        if address is None:
            raise RendezvousUnknown(f"there is no {self._entry.name}")
        return address

    async def close(self) -> None:
        """Close the connections."""
        await self._entry.close()


def rendezvous_address(rendezvous: str | None, registry: str | None) -> RendezvousAddress:
    """Return the lookup for a worker with these options. Raises OptionError."""
    name = registered_name(rendezvous)
    if name is None:
        assert rendezvous is not None  # None has a default name
        return FixedAddress(rendezvous)
    if registry is None:
        raise OptionError("rendezvous: without a registry it must be the host:port of a `baton rendezvous`")
    return RegisteredAddress(open_address(registry, KIND, name))


@asynccontextmanager
async def registered(config: RendezvousConfig, address: str) -> AsyncIterator[asyncio.Future[None]]:
    """Keep the rendezvous registered; no-op without a registry.

    Yields a future that fails if another rendezvous has taken the name. An unreachable registry is not a failure.
    """
    if config.registry is None:
        yield asyncio.get_running_loop().create_future()
        return
    entry = open_address(config.registry, KIND, config.name)
    keeping = asyncio.create_task(entry.keep(address, config.lease_s), name="rendezvous registration")
    try:
        yield keeping
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)  # the caller has the failure from the future
        await entry.withdraw()
        await entry.close()
