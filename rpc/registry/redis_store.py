"""How a cluster's members stand in Redis.

    baton:{NAMESPACE}:worker:INCARNATION   a member as JSON; its time to live is the lease
    baton:{NAMESPACE}:workers              set of the incarnations of all members
    baton:{NAMESPACE}:changes              channel on which each change is announced
    baton:{NAMESPACE}:router:ROUTER_ID     what a router tells of its traffic and its workers, as JSON
    baton:{NAMESPACE}:routers              set of the ids of all routers

The braces keep one cluster's keys on one node of a Redis Cluster.
"""

import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import asdict, fields
from typing import Any, cast

import orjson
from redis.asyncio.client import PubSub

from baton.rpc.registry.base import Member
from baton.rpc.registry.redis_client import TIMEOUT_S, RedisConnections, done
from baton.rpc.registry.redis_texts import LapsingTexts
from baton.rpc.registry.url import RegistryUrl

logger = logging.getLogger(__name__)

FIELDS = {entry.name: entry.type for entry in fields(Member)}


class Changes:
    """Announcements on a channel, as one router hears them."""

    def __init__(self, channel: PubSub) -> None:
        self._channel = channel

    async def wait(self, timeout_s: float) -> None:
        """Returns when something was announced since the last time, or after the time-out; raises if Redis is lost."""
        await done(self._next(timeout_s))
        while await done(self._next(0)) is not None:
            pass  # all of them are answered by listing once

    def _next(self, timeout_s: float) -> Awaitable[Any]:
        return self._channel.get_message(ignore_subscribe_messages=True, timeout=timeout_s)


class RedisStore:
    """Owns the connections to Redis; every method raises one of REDIS_ERRORS if Redis is lost."""

    def __init__(self, url: RegistryUrl) -> None:
        self._connections = RedisConnections(url)
        # The commands' types promise results or awaitables of them; an asyncio client's are all awaitables.
        self._client = cast(Any, self._connections.client)
        prefix = f"baton:{{{url.namespace}}}:"
        self.reports = LapsingTexts(self._client, f"{prefix}router:", f"{prefix}routers")
        self._members = LapsingTexts(self._client, f"{prefix}worker:", f"{prefix}workers")
        self._index = f"{prefix}workers"
        self._channel = f"{prefix}changes"
        self._decoded: dict[str, Member | None] = {}  # members as last listed, by text; None: no member

    async def put(self, member: Member, lease_s: float) -> None:
        """The member is there, as given, for so many seconds; tells the routers."""
        await self._members.put(member.incarnation, encode_member(member), lease_s)
        await done(self._client.publish(self._channel, member.incarnation))

    async def renew(self, member: Member, lease_s: float) -> bool:
        """The member is there for so many seconds more; False if its lease had lapsed, and then it is not."""
        return await self._members.renew(member.incarnation, lease_s)

    async def remove(self, member: Member) -> None:
        """The member is gone; tells the routers."""
        await self._members.remove(member.incarnation)
        await done(self._client.publish(self._channel, member.incarnation))

    async def members(self) -> tuple[Member, ...]:
        """All members whose lease holds, by worker id."""
        texts = await self._members.all()
        known = self._decoded
        self._decoded = {
            text: known[text] if text in known else _decode_or_warn(text)  # said once of each
            for text in texts.values()
        }
        members = [member for text in texts.values() if (member := self._decoded[text]) is not None]
        return tuple(sorted(members, key=lambda member: (member.worker_id, member.incarnation)))

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Changes]:
        """Announcements from now on: what is listed after this began misses none."""
        await done(
            self._client.exists(self._index)
        )  # a cluster's client learns from a command alone which nodes there are
        channel = self._client.pubsub()
        try:
            await done(channel.subscribe(self._channel))
            if await done(channel.get_message(timeout=TIMEOUT_S)) is None:
                raise TimeoutError(f"no answer to a subscription within {TIMEOUT_S:g} s")
            yield Changes(channel)
        finally:
            await done(channel.aclose())

    async def close(self) -> None:
        """Ends the connections."""
        await self._connections.close()


def _decode_or_warn(text: str) -> Member | None:
    try:
        return decode_member(text)
    except ValueError as error:
        logger.warning("a member in the registry is left out: %s", error)
        return None


def encode_member(member: Member) -> str:
    """A member as JSON."""
    return orjson.dumps(asdict(member)).decode()


def decode_member(text: str) -> Member:
    """The member of a JSON text. Raises ValueError if it is none; what a later version added is left out."""
    values = orjson.loads(text)
    if not isinstance(values, dict):
        raise ValueError(f"{text!r} is no object")
    known = {name: value for name, value in values.items() if name in FIELDS}
    try:
        member = Member(**known)
    except TypeError as error:
        raise ValueError(f"{text!r}: {error}") from error
    texts = (member.worker_id, member.incarnation, member.role, member.address, member.model, member.fingerprint)
    numbers = (member.block_size, member.max_num_seqs)
    if not all(isinstance(each, str) for each in texts) or not all(isinstance(each, int) for each in numbers):
        raise ValueError(f"{text!r} has a value of a wrong type")
    return member
