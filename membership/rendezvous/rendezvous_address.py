"""Where a rendezvous is: at an address that members are told, or where the registry says at the time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from baton.membership.registry.base import NamedAddress, RegistryLost
from baton.membership.registry.factory import open_address
from baton.membership.rendezvous.config import RendezvousConfig
from baton.settings.names import registered_name
from baton.settings.values import OptionError

KIND = "rendezvous"  # in the registry


class RendezvousUnknown(Exception):
    """Nobody can say now where the rendezvous is; the text says why."""


class RendezvousAddress(Protocol):
    """Where the members of a group find their rendezvous, which may move."""

    async def find(self) -> str:
        """Its host:port as it is now. Raises RendezvousUnknown."""
        ...

    async def close(self) -> None:
        """Ends what is needed to find it."""
        ...


class FixedAddress:
    """A rendezvous that is where it always was."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def find(self) -> str:
        """Its host:port."""
        return self._address

    async def close(self) -> None:
        """Nothing is open."""


class RegisteredAddress:
    """Owns the way to where the registry has a rendezvous."""

    def __init__(self, entry: NamedAddress) -> None:
        self._entry = entry

    async def find(self) -> str:
        """Its host:port, as the registry has it. Raises RendezvousUnknown."""
        try:
            address = await self._entry.find()
        except RegistryLost as error:
            raise RendezvousUnknown(f"the registry cannot tell where {self._entry.name} is: {error}") from error
        if address is None:
            raise RendezvousUnknown(f"there is no {self._entry.name}")
        return address

    async def close(self) -> None:
        """Ends the connections."""
        await self._entry.close()


def rendezvous_address(rendezvous: str | None, registry: str | None) -> RendezvousAddress:
    """Where a worker with these options finds its rendezvous. Raises OptionError."""
    name = registered_name(rendezvous)
    if name is None:
        assert rendezvous is not None  # nothing stands for a name
        return FixedAddress(rendezvous)
    if registry is None:
        raise OptionError("rendezvous: without a registry it must be the host:port of a `baton rendezvous`")
    return RegisteredAddress(open_address(registry, KIND, name))


@asynccontextmanager
async def standing(config: RendezvousConfig, address: str) -> AsyncIterator[asyncio.Future[None]]:
    """Keeps the rendezvous in its registry, if it has one.

    Gives what is done only if another has its place; a registry that is lost is no failure.
    """
    if config.registry is None:
        yield asyncio.get_running_loop().create_future()
        return
    entry = open_address(config.registry, KIND, config.name)
    keeping = asyncio.create_task(entry.keep(address, config.lease_s), name="rendezvous' place")
    try:
        yield keeping
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)  # who serves was told
        await entry.withdraw()
        await entry.close()
