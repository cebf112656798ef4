"""A text in Redis on which processes agree: that of the first process, as long as any of them runs.

baton:{NAMESPACE}:NAME   the text; each read renews its time to live

Values that Baton cannot have written are replaced: other types, bytes that are not UTF-8, and texts that are empty or
too long.
"""

import logging
from typing import Any, cast

from redis.exceptions import ResponseError

from baton.membership.registry.base import RegistryLost
from baton.membership.registry.redis_client import REDIS_ERRORS, RedisConnections, done
from baton.membership.registry.redis_texts import is_wrong_type
from baton.settings.registry_url import RegistryUrl

logger = logging.getLogger(__name__)

LEASE_MS = 3_600_000  # without any process that reads it
MAX_BYTES = 4096  # of a text


class RedisSharedText:
    """Owns connections to Redis."""

    def __init__(self, url: RegistryUrl, name: str) -> None:
        """Store the settings; connections open with the first command."""
        self.name = f"{name} at {url}"  # without passwords
        self._connections = RedisConnections(url)
        self._client = cast(Any, self._connections.client)  # its types promise results or awaitables of them
        self._key = f"baton:{{{url.namespace}}}:{name}"

    async def agree(self, proposed: str) -> str:
        """Return the agreed text; see `SharedText`."""
        try:
            if await done(self._client.set(self._key, proposed, nx=True, px=LEASE_MS)):
                return proposed
            text = await self._read()
            if text is None:
                logger.warning("%s was overwritten, and is put there again", self.name)
                await done(self._client.set(self._key, proposed, px=LEASE_MS))
                return proposed
            await done(self._client.pexpire(self._key, LEASE_MS))
        except REDIS_ERRORS as error:
            raise RegistryLost(f"{type(error).__name__}: {error}") from error
        return text

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()

    async def _read(self) -> str | None:
        """Return the text; None if what stands there is none."""
        try:
            stored: bytes = await done(self._client.getrange(self._key, 0, MAX_BYTES))  # one byte more than it may have
            text = stored.decode()
        except UnicodeDecodeError:
            return None
        except ResponseError as error:
            if is_wrong_type(error):
                return None
            raise
        return text if text.isprintable() and 0 < len(stored) <= MAX_BYTES else None
