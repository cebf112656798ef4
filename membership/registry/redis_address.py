"""Address in Redis of a process of which a cluster has one; the latest process under a name owns it.

baton:{NAMESPACE}:KIND:NAME   host:port of it and its incarnation, as JSON; the time to live is the lease
"""

import asyncio
import logging
import uuid
from dataclasses import asdict, dataclass
from typing import Any, cast

import orjson
from redis.exceptions import ResponseError

from baton.membership.registry.base import LONGEST_PAUSE_S, PlaceTaken, RegistryLost
from baton.membership.registry.redis_client import REDIS_ERRORS, RedisConnections, done
from baton.membership.registry.redis_lease import FIRST_BACKOFF_S, LAST_BACKOFF_S, RENEWALS
from baton.membership.registry.redis_texts import is_wrong_type
from baton.rpc.backoff import Backoff
from baton.settings.names import is_host_port
from baton.settings.registry_url import RegistryUrl

logger = logging.getLogger(__name__)

MAX_BYTES = 4096  # read of an address; the rest is ignored
NO_TEXT = b" "  # stands for a value of another type


class RedisAddress:
    """Owns connections to Redis, and in the process that is looked for its place there."""

    def __init__(self, url: RegistryUrl, kind: str, name: str) -> None:
        """Store the settings; connections open with the first command."""
        self._name = f"{kind} {name} at {url}"
        self._connections = RedisConnections(url)
        self._client = cast(Any, self._connections.client)  # its types promise results or awaitables of them
        self._key = f"baton:{{{url.namespace}}}:{kind}:{name}"
        self._incarnation = uuid.uuid4().hex
        self._text: bytes | None = None  # the text that this process stored

    @property
    def name(self) -> str:
        """Name for logs, without passwords."""
        return self._name

    async def find(self) -> str | None:
        """Return its host:port; None if there is none. Raises RegistryLost."""
        try:
            place = _place(await self._read())
        except REDIS_ERRORS as error:
            raise RegistryLost(f"{type(error).__name__}: {error}") from error
        return place.address if place is not None else None

    async def keep(self, address: str, lease_s: float) -> None:
        """Publish the address until cancelled, even while Redis is lost. Raises PlaceTaken."""
        backoff = Backoff(FIRST_BACKOFF_S, LAST_BACKOFF_S)
        ours = _Place(address, self._incarnation)
        text = orjson.dumps(asdict(ours))
        is_lost = False
        while True:
            try:
                if self._text is None:
                    await self._put(text, lease_s)
                    logger.info("%s is %s", self.name, address)
                    self._text = text
                else:
                    await self._renew(ours, text, lease_s)
            except REDIS_ERRORS as error:
                if not is_lost:
                    logger.warning("%s cannot be kept, Redis is lost: %s", self.name, error)
                is_lost = True
                await backoff.wait()
                continue
            is_lost = False
            await asyncio.sleep(min(lease_s / RENEWALS, LONGEST_PAUSE_S))

    async def withdraw(self) -> None:
        """Remove the address, after `keep` has ended, unless another process has taken it. Without Redis it lapses."""
        if self._text is None:
            return
        try:
            if await self._read() == self._text:
                await done(self._client.delete(self._key))
        except REDIS_ERRORS as error:
            logger.warning("%s lapses by itself, Redis is lost: %s", self.name, error)

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()

    async def _put(self, text: bytes, lease_s: float) -> None:
        await done(self._client.set(self._key, text, px=round(lease_s * 1000)))

    async def _renew(self, ours: "_Place", text: bytes, lease_s: float) -> None:
        """Between the look and the renewal another may come: then its lease is renewed, and the next look finds it."""
        there = await self._read()
        if there == text:
            await done(self._client.pexpire(self._key, round(lease_s * 1000)))
            return
        other = _place(there)
        if other is not None and other.address != ours.address and other.incarnation != ours.incarnation:
            raise PlaceTaken(f"{self.name} is {other.address} now; each needs a name of its own")
        if there:
            logger.warning("%s was overwritten, and is put there again", self.name)
        await self._put(text, lease_s)

    async def _read(self) -> bytes:
        """Return the stored text; empty if there is none."""
        try:
            stored: bytes = await done(self._client.getrange(self._key, 0, MAX_BYTES - 1))
            return stored
        except ResponseError as error:
            if is_wrong_type(error):
                return NO_TEXT
            raise


@dataclass(frozen=True, slots=True)
class _Place:
    """Stored text of an address."""

    address: str
    incarnation: str


def _place(text: bytes) -> _Place | None:
    """The place in a text; None for what no process of ours has written."""
    try:
        values = orjson.loads(text)
        address, incarnation = values["address"], values["incarnation"]
        if len(values) != 2:  # a worker's entry, for example, has these two among others
            return None
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(address, str) or not isinstance(incarnation, str) or not is_host_port(address):
        return None
    return _Place(address, incarnation)
