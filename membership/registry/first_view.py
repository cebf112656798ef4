"""One look at a registry."""

import asyncio

from baton.membership.registry.base import Registry, RegistryView


async def first_view(registry: Registry, timeout_s: float) -> RegistryView:
    """Return the registry's first view, and close the registry. Raises TimeoutError."""
    first: asyncio.Future[RegistryView] = asyncio.get_running_loop().create_future()

    def listen(view: RegistryView) -> None:
        if not first.done():
            first.set_result(view)

    following = asyncio.create_task(registry.follow(listen))
    try:
        return await asyncio.wait_for(first, timeout_s)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await registry.close()
