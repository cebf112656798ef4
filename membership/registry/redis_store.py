"""Members of a cluster in Redis.

    baton:{NAMESPACE}:worker:INCARNATION   a member as JSON; its time to live is the lease
    baton:{NAMESPACE}:workers              set of the incarnations of all members
    baton:{NAMESPACE}:changes              channel on which each change is announced
    baton:{NAMESPACE}:router:ROUTER_ID     report of a router about its traffic and workers, as JSON
    baton:{NAMESPACE}:routers              set of the ids of all routers
    baton:{NAMESPACE}:plan:APPLICATION     last plan of an application's autoscaler, as JSON
    baton:{NAMESPACE}:plans                set of the applications with a plan

The braces keep one cluster's keys on one node of a Redis Cluster.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any, cast, get_args

import orjson
from redis.asyncio.client import PubSub

from baton.membership.registry.base import Member
from baton.membership.registry.redis_client import TIMEOUT_S, RedisConnections, done
from baton.membership.registry.redis_texts import BATCH, LapsingTexts, Texts
from baton.settings.names import Role, is_host_port
from baton.settings.registry_url import RegistryUrl

logger = logging.getLogger(__name__)

FIELDS = {entry.name: entry.type for entry in fields(Member)}
ROLES = get_args(Role)
MAX_MEMBER_BYTES = 1 << 14
MAX_REPORT_BYTES = 1 << 22  # some thousand workers
MAX_PLAN_BYTES = 1 << 16
MAX_NUMBER = 1 << 31
MAX_SHOWN_CHARS = 100
MAX_ANNOUNCEMENTS = 1000  # covered by one listing
ANNOUNCEMENTS_AT_ONCE = 10  # before other tasks of the event loop run
FLOOD_PAUSE_S = 0.05  # before the next listing if there are more announcements than one covers


@dataclass(frozen=True, slots=True)
class Listing:
    """The members whose lease holds, by worker id."""

    members: tuple[Member, ...]
    num_malformed: int  # entries that are not members


class Changes:
    """Announcements on a channel, as one router receives them."""

    def __init__(self, channel: PubSub) -> None:
        self._channel = channel

    async def wait(self, timeout_s: float) -> None:
        """Wait for an announcement since the last call, or for the time-out. Raises if Redis is lost."""
        await done(self._next(timeout_s))
        for count in range(1, MAX_ANNOUNCEMENTS):  # one listing covers them all
            if await done(self._next(0)) is None:
                return
            if count % ANNOUNCEMENTS_AT_ONCE == 0:
                await asyncio.sleep(0)  # buffered announcements are read without a pause
        await asyncio.sleep(FLOOD_PAUSE_S)

    def _next(self, timeout_s: float) -> Awaitable[Any]:
        return self._channel.get_message(ignore_subscribe_messages=True, timeout=timeout_s)


class RedisStore:
    """Owns the connections to Redis; every method raises one of REDIS_ERRORS if Redis is lost."""

    def __init__(self, url: RegistryUrl) -> None:
        self._connections = RedisConnections(url)
        # The commands' types promise results or awaitables of them; an asyncio client's are all awaitables.
        self._client = cast(Any, self._connections.client)
        prefix = f"baton:{{{url.namespace}}}:"
        self.reports = LapsingTexts(self._client, f"{prefix}router:", f"{prefix}routers", MAX_REPORT_BYTES)
        self.plans = LapsingTexts(self._client, f"{prefix}plan:", f"{prefix}plans", MAX_PLAN_BYTES)
        self._members = LapsingTexts(self._client, f"{prefix}worker:", f"{prefix}workers", MAX_MEMBER_BYTES)
        self._index = f"{prefix}workers"
        self._channel = f"{prefix}changes"
        self._decoded: dict[str, Member] = {}  # members as last listed, by text
        self._malformed: frozenset[bytes] = frozenset()  # ids that were last listed and are no members
        self._was_full = False  # at the last listing

    async def put(self, member: Member, lease_s: float) -> None:
        """Store the member for this many seconds and announce it."""
        await self._members.put(member.incarnation, encode_member(member), lease_s)
        await done(self._client.publish(self._channel, member.incarnation))

    async def renew(self, member: Member, lease_s: float) -> bool:
        """Extend the member's lease; return False, without an effect, if it had lapsed."""
        return await self._members.renew(member.incarnation, encode_member(member), lease_s)

    async def remove(self, member: Member) -> None:
        """Remove the member and announce it."""
        await self._members.remove(member.incarnation)
        await done(self._client.publish(self._channel, member.incarnation))

    async def members(self) -> Listing:
        """Return all members with a valid lease; leave out other entries, with one warning for each key."""
        texts = await self._members.all()
        decoded: dict[str, Member] = {}
        for index, (text_id, text) in enumerate(texts.by_id.items()):
            if index % BATCH == 0:
                await asyncio.sleep(0)  # thousands of the longest take seconds
            try:
                decoded[text] = self._decoded[text] if text in self._decoded else decode_member(text)
            except ValueError as error:
                texts.malformed[text_id] = str(error)
        self._decoded = decoded
        self._warn(texts)
        members = sorted(decoded.values(), key=lambda member: (member.worker_id, member.incarnation))
        return Listing(tuple(members), len(texts.malformed))

    def _warn(self, texts: Texts) -> None:
        """Log the ids that were not malformed at the last listing, in one line."""
        new = [text_id for text_id in texts.malformed if text_id not in self._malformed]
        self._malformed, was_full, self._was_full = frozenset(texts.malformed), self._was_full, texts.is_full
        if new:
            more = f" (and {len(new) - 1} more)" if len(new) > 1 else ""
            key = f"{new[0][:MAX_SHOWN_CHARS].decode(errors='replace')!r}"
            logger.warning("a member in the registry is left out, %s%s: %s", key, more, texts.malformed[new[0]])
        if texts.is_full and not was_full:
            logger.warning("%s has more members than are read: %d", self._index, len(texts.by_id))

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[Changes]:
        """Subscribe to announcements; a listing after this misses none."""
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
        """Close the connections."""
        await self._connections.close()


def encode_member(member: Member) -> str:
    """Return a member as JSON."""
    return orjson.dumps(asdict(member)).decode()


def decode_member(text: str) -> Member:
    """Return the member in a JSON text, without fields of later versions. Raises ValueError if it is not a member."""
    shown = f"{text[:MAX_SHOWN_CHARS]!r}"
    values = orjson.loads(text)
    if not isinstance(values, dict):
        raise ValueError(f"{shown} is no object")
    try:
        member = Member(**{name: value for name, value in values.items() if name in FIELDS})
    except TypeError as error:
        raise ValueError(f"{shown}: {error}") from error
    texts = (member.worker_id, member.incarnation, member.role, member.address, member.model, member.fingerprint)
    numbers = (member.block_size, member.max_num_seqs)
    if not all(isinstance(each, str) and each.isprintable() for each in texts):
        raise ValueError(f"{shown} has a text that is none")
    if not all(isinstance(each, int) and 0 <= each < MAX_NUMBER for each in numbers):
        raise ValueError(f"{shown} has a number that is none")
    if not isinstance(member.draining, bool) or member.role not in ROLES or not is_host_port(member.address):
        raise ValueError(f"{shown} has a value that it cannot have")
    return member
