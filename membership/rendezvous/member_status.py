"""A rendezvous' place in the registry, from its being ready to its end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton.membership.registry.factory import open_address
from baton.membership.rendezvous.config import RendezvousConfig
from baton.membership.rendezvous.rendezvous_address import KIND


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
