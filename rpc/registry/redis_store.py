"""How a cluster's members stand in Redis.

    baton:{NAMESPACE}:worker:INCARNATION   a member as JSON; its time to live is the lease
    baton:{NAMESPACE}:workers              set of the incarnations of all members
    baton:{NAMESPACE}:changes              channel on which each change is announced

The braces keep one cluster's keys on one node of a Redis Cluster. An incarnation whose lease lapsed stays in the set
until a router that lists the members takes it out; a worker that is there all the same is back in the set with its next
renewal.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import asdict, fields
from typing import Any, cast

import orjson
from redis.asyncio.client import PubSub

from rpc.registry.base import Member
from rpc.registry.redis_client import TIMEOUT_S, RedisConnections
from rpc.registry.url import RegistryUrl

logger = logging.getLogger(__name__)

BATCH = 100  # members read at once

FIELDS = {entry.name: entry.type for entry in fields(Member)}


class Changes:
    """Announcements on a channel, as one router hears them."""

    def __init__(self, channel: PubSub) -> None:
        self._channel = channel

    async def wait(self, timeout_s: float) -> None:
        """Returns when something was announced since the last time, or after the time-out; raises if Redis is lost."""
        await _done(self._next(timeout_s))
        while await _done(self._next(0)) is not None:
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
        self._key = f"{prefix}worker:"
        self._index = f"{prefix}workers"
        self._channel = f"{prefix}changes"
        self._decoded: dict[str, Member | None] = {}  # members as last listed, by text; None: no member

    async def put(self, member: Member, lease_s: float) -> None:
        """The member is there, as given, for so many seconds; tells the routers."""
        await _done(self._client.set(self._key + member.incarnation, encode_member(member), px=round(lease_s * 1000)))
        await _done(self._client.sadd(self._index, member.incarnation))
        await _done(self._client.publish(self._channel, member.incarnation))

    async def renew(self, member: Member, lease_s: float) -> bool:
        """The member is there for so many seconds more; False if its lease had lapsed, and then it is not."""
        if not await _done(self._client.pexpire(self._key + member.incarnation, round(lease_s * 1000))):
            return False
        await _done(self._client.sadd(self._index, member.incarnation))
        return True

    async def remove(self, member: Member) -> None:
        """The member is gone; tells the routers."""
        await _done(self._client.delete(self._key + member.incarnation))
        await _done(self._client.srem(self._index, member.incarnation))
        await _done(self._client.publish(self._channel, member.incarnation))

    async def members(self) -> tuple[Member, ...]:
        """All members whose lease holds, by worker id; read in batches, so that a thousand hold nobody up."""
        texts: dict[str, str] = {}  # by incarnation
        cursor = 0
        while True:
            cursor, incarnations = await _done(self._client.sscan(self._index, cursor, count=BATCH))
            if incarnations:
                texts |= await self._read(incarnations)
            if not int(cursor):
                break
        known = self._decoded
        self._decoded = {
            text: known[text] if text in known else _decode_or_warn(text)  # said once of each
            for text in texts.values()
        }
        members = [member for text in texts.values() if (member := self._decoded[text]) is not None]
        return tuple(sorted(members, key=lambda member: (member.worker_id, member.incarnation)))

    async def _read(self, incarnations: list[str]) -> dict[str, str]:
        """What stands there of these members; those whose lease lapsed are taken out of the set."""
        texts = await _done(self._client.mget([self._key + each for each in incarnations]))
        found = dict(zip(incarnations, texts, strict=True))
        lapsed = [each for each, text in found.items() if text is None]
        if lapsed:
            await _done(self._client.srem(self._index, *lapsed))
        return {each: text for each, text in found.items() if text is not None}

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Changes]:
        """Announcements from now on: what is listed after this began misses none."""
        await _done(
            self._client.exists(self._index)
        )  # a cluster's client learns from a command alone which nodes there are
        channel = self._client.pubsub()
        try:
            await _done(channel.subscribe(self._channel))
            if await _done(channel.get_message(timeout=TIMEOUT_S)) is None:
                raise TimeoutError(f"no answer to a subscription within {TIMEOUT_S:g} s")
            yield Changes(channel)
        finally:
            await _done(channel.aclose())

    async def close(self) -> None:
        """Ends the connections."""
        await self._connections.close()


def _decode_or_warn(text: str) -> Member | None:
    try:
        return decode_member(text)
    except ValueError as error:
        logger.warning("a member in the registry is left out: %s", error)
        return None


async def _done(command: Awaitable[Any]) -> Any:
    """The command's result or error; but never one in place of our being cancelled, nor a cancellation of its own.

    The client waits with `asyncio.wait_for`, which up to Python 3.11 forgets a cancellation that comes just as what it
    waits for is done: our callers would go on for ever. And who waits for a stream's end after another was cancelled
    there is cancelled too, for no reason of ours: our callers would end.
    """
    task = asyncio.current_task()
    assert task is not None
    num_before = task.cancelling()
    try:
        return await command
    except asyncio.CancelledError as error:
        if task.cancelling() > num_before:
            raise
        raise ConnectionError("the client gave the command up") from error
    finally:
        if task.cancelling() > num_before:
            raise asyncio.CancelledError


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
