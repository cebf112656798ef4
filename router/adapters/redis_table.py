"""Table of adapters in the Redis of the registry.

baton:{NAMESPACE}:adapters:MODEL   a hash: adapters as JSON, by name
"""

import logging
from typing import Any, cast

from redis.exceptions import ResponseError

from baton.membership.registry.base import RegistryLost
from baton.membership.registry.redis_client import REDIS_ERRORS, RedisConnections, done
from baton.membership.registry.redis_texts import is_wrong_type
from baton.router.adapters.adapter import Adapter, decode_adapter
from baton.settings.registry_url import RegistryUrl

logger = logging.getLogger(__name__)


class RedisTable:
    """Owns connections to Redis."""

    is_shared = True

    def __init__(self, url: RegistryUrl, model_name: str) -> None:
        """Store the settings; connections open with the first command."""
        self._connections = RedisConnections(url)
        self._client = cast(Any, self._connections.client)  # its types promise results or awaitables of them
        self._key = f"baton:{{{url.namespace}}}:adapters:{model_name}"
        self._malformed: frozenset[bytes] = frozenset()  # names that were left out at the last read

    async def read(self) -> dict[str, Adapter]:
        """Return all adapters."""
        stored: dict[bytes, bytes] = await self._run(self._client.hgetall, self._key)
        found, malformed = {}, dict[bytes, str]()
        for name, text in stored.items():
            try:
                adapter = decode_adapter(text)
                if adapter.name.encode() != name:
                    raise ValueError(f"it has the name {adapter.name}")
                found[adapter.name] = adapter
            except ValueError as error:
                malformed[name] = str(error)
        for name in malformed.keys() - self._malformed:
            logger.warning("an adapter in the registry is left out, %r: %s", name[:100], malformed[name])
        self._malformed = frozenset(malformed)
        return found

    async def add(self, adapter: Adapter) -> Adapter:
        """Add an adapter unless there is one of this name; return the one that is there then."""
        if await self._run(self._client.hsetnx, self._key, adapter.name, adapter.encode()):
            return adapter
        stored = await self._run(self._client.hget, self._key, adapter.name)
        try:
            return adapter if stored is None else decode_adapter(stored)
        except ValueError:
            await self._run(self._client.hset, self._key, adapter.name, adapter.encode())
            return adapter

    async def remove(self, name: str) -> None:
        """Remove an adapter."""
        await self._run(self._client.hdel, self._key, name)

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()

    async def _run(self, command: Any, *arguments: str) -> Any:
        try:
            return await done(command(*arguments))
        except ResponseError as error:
            if not is_wrong_type(error):
                raise RegistryLost(f"{type(error).__name__}: {error}") from error
            logger.warning("%s in the registry was no hash, and is replaced by one", self._key)
            try:
                await done(self._client.delete(self._key))
                return await done(command(*arguments))
            except REDIS_ERRORS as again:
                raise RegistryLost(f"{type(again).__name__}: {again}") from again
        except REDIS_ERRORS as error:
            raise RegistryLost(f"{type(error).__name__}: {error}") from error
