"""A text in Redis on which processes agree: the first one's, as long as any of them is there.

baton:{NAMESPACE}:NAME   the text; its time to live is renewed with each look
"""

from typing import Any, cast

from baton.rpc.registry.base import RegistryLost
from baton.rpc.registry.redis_client import REDIS_ERRORS, RedisConnections, done
from baton.rpc.registry.url import RegistryUrl

LEASE_S = 3600  # without any process that looks


class RedisSharedText:
    """Owns connections to Redis."""

    def __init__(self, url: RegistryUrl, name: str) -> None:
        """Connects to nothing yet."""
        self.name = f"{name} at {url}"  # without passwords
        self._connections = RedisConnections(url)
        self._client = cast(Any, self._connections.client)  # its types promise results or awaitables of them
        self._key = f"baton:{{{url.namespace}}}:{name}"

    async def agree(self, proposed: str) -> str:
        """See SharedText."""
        try:
            await done(self._client.set(self._key, proposed, nx=True, ex=LEASE_S))
            text = await done(self._client.get(self._key))
            await done(self._client.expire(self._key, LEASE_S))
        except REDIS_ERRORS as error:
            raise RegistryLost(f"{type(error).__name__}: {error}") from error
        return proposed if not text else str(text)  # nothing: it was removed in between

    async def close(self) -> None:
        """Ends every connection."""
        await self._connections.close()
