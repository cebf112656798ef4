"""Store in the Redis of the registry, which all routers of a cluster share."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from baton.membership.registry.redis_client import REDIS_ERRORS, RedisConnections, done
from baton.router.responses.store.base import (
    MAX_CHAIN_BYTES,
    MAX_TURNS,
    RECORD_OVERHEAD,
    Chain,
    Record,
    StoreLimits,
    StoreLost,
    TenantId,
)
from baton.router.responses.store.redis_scripts import CHAIN, DELETE, PUT, script
from baton.settings.registry_url import RegistryUrl

logger = logging.getLogger(__name__)

MAX_COMMANDS = 32  # at once, each with a connection
MAX_WAITING = 1024  # commands that wait for one of these
PAUSE_S = 1.0  # after an error, in which no command is tried: a Redis that hangs would delay each response by seconds

PUT_SCRIPT, CHAIN_SCRIPT, DELETE_SCRIPT = (script(each, RECORD_OVERHEAD) for each in (PUT, CHAIN, DELETE))


class RedisStore:
    """Owns connections to Redis."""

    def __init__(self, url: RegistryUrl, limits: StoreLimits) -> None:
        """Store the settings; connections open with the first command."""
        self.name = f"stored responses at {url}"  # without passwords
        self._limits = limits
        self._connections = RedisConnections(url)
        self._client = cast(Any, self._connections.client)  # its types promise results or awaitables of them
        self._base = f"baton:{{{url.namespace}}}:response"
        self._places = asyncio.Semaphore(MAX_COMMANDS)
        self._num_waiting = 0
        self._is_lost = False
        self._paused_until_s = 0.0

    async def put(self, tenant: TenantId, response_id: str, record: Record) -> bool:
        """Store a record; the least recently used ones make room. Return False if it is larger than the store."""
        limits = self._limits
        if record.num_bytes > min(limits.tenant_bytes, limits.max_bytes, MAX_CHAIN_BYTES):
            return False
        text = f"{record.previous_id or ''}\n".encode() + record.content
        bounds = (limits.max_bytes, limits.tenant_bytes)
        await self._run(PUT_SCRIPT, tenant, response_id, text, len(record.content), *bounds)
        return True

    async def get(self, tenant: TenantId, response_id: str) -> Record | None:
        """Return a record; None: there is none."""
        async with self._command():
            text = await done(self._client.get(f"{self._base}:{tenant}:{response_id}"))
        return None if text is None else _record(text)

    async def chain(self, tenant: TenantId, response_id: str) -> Chain:
        """Return the conversation that ends with a response, and renew its time."""
        status, *found = await self._run(CHAIN_SCRIPT, tenant, response_id, MAX_TURNS, MAX_CHAIN_BYTES)
        if status == b"missing":
            return Chain(missing_id=found[0].decode(errors="replace"))
        if status != b"found":
            return Chain(is_too_long=True)
        return Chain(tuple(map(_record, reversed(found))))

    async def delete(self, tenant: TenantId, response_id: str) -> bool:
        """Delete a record. Return whether there was one."""
        return bool(await self._run(DELETE_SCRIPT, tenant, response_id))

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()

    async def _run(self, text: str, tenant: TenantId, response_id: str, *arguments: object) -> Any:
        ttl_ms = round(self._limits.ttl_s * 1000)
        async with self._command():
            return await done(self._client.eval(text, 1, self._base, tenant, response_id, ttl_ms, *arguments))

    @asynccontextmanager
    async def _command(self) -> AsyncIterator[None]:
        """Wait for one of `MAX_COMMANDS` places. Raises StoreLost for Redis' errors, and soon after one of them."""
        if self._num_waiting >= MAX_WAITING:
            raise StoreLost("too many requests wait for the stored responses; try again")
        self._num_waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._num_waiting -= 1
        try:
            if time.monotonic() < self._paused_until_s:
                raise StoreLost("the stored responses cannot be reached now; try again")
            yield
            if self._is_lost:
                self._is_lost = False
                logger.info("%s can be reached again", self.name)
        except REDIS_ERRORS as error:
            self._paused_until_s = time.monotonic() + PAUSE_S
            if not self._is_lost:
                self._is_lost = True
                logger.warning("%s cannot be reached, and responses are not stored: %s", self.name, error)
            raise StoreLost("the stored responses cannot be reached now; try again") from error
        finally:
            self._places.release()


def _record(text: bytes) -> Record:
    previous_id, _, content = text.partition(b"\n")
    return Record(previous_id.decode(errors="replace") or None, content)
