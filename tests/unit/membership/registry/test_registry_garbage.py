"""A registry in a real Redis that holds data that no worker wrote."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from baton.membership.registry import redis_lease, redis_texts
from baton.membership.registry.factory import open_address, open_registry
from baton.membership.registry.redis_client import MAX_REPLY_BYTES
from baton.membership.registry.redis_store import MAX_MEMBER_BYTES, decode_member, encode_member
from tests.faults.redis_garbage import TEXTS, garbage_in_redis
from tests.redis_server import HOST, RedisServer, redis_server
from tests.unit.membership.registry.registry_members import DEADLINE_S, Views, following, kept, make_member, reporting

LEASE_S = 10.0
KEYS = "baton:{default}:"
WORKERS, WORKER, CHANGES = KEYS + "workers", KEYS + "worker:", KEYS + "changes"
BYTES = (b"\xff", b"\xc3\x28", b"a\x00b", b"\xed\xa0\x80")


@pytest_asyncio.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisServer]:
    """Yield a Redis server without a password; leases are renewed often."""
    monkeypatch.setattr(redis_lease, "LONGEST_PAUSE_S", 0.05)
    async with redis_server(tmp_path) as server:
        yield server


@pytest_asyncio.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    """Yield a client for writing to the server."""
    async with Redis(host=HOST, port=server.port) as client:
        yield client


async def listed_again(views: Views, redis: Redis) -> None:
    """Return once the members were listed after this call."""
    await asyncio.sleep(0)
    for _ in range(2):  # the first listing may have begun before
        count = len(views.all)
        await redis.publish(CHANGES, b"\xff")
        await views.until(lambda _, count=count: len(views.all) > count)  # type: ignore[misc]


async def test_published_bytes_that_are_no_text_are_ignored(server: RedisServer, redis: Redis) -> None:
    registry, member = open_registry(server.url), make_member()
    async with following(registry) as views:
        await views.until(lambda view: view.is_listed)
        for each in BYTES:
            await redis.publish(CHANGES, each)
        async with kept(registry.lease(member, LEASE_S)):
            await views.until_members(member)
    assert all(view.error is None for view in views.all)
    await registry.close()


async def test_ids_and_values_that_are_no_text_are_ignored(
    server: RedisServer, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await redis.sadd(WORKERS, *BYTES, b"i" * 10_000)  # ids without a value leave the set
    for index, each in enumerate(BYTES):
        await redis.sadd(WORKERS, f"bytes-{index}")
        await redis.set(f"{WORKER}bytes-{index}", each)
    registry, member = open_registry(server.url), make_member()  # started after the garbage was written
    async with following(registry) as views, kept(registry.lease(member, LEASE_S)):
        await views.until_members(member)
        await listed_again(views, redis)
        assert views.last.num_malformed == len(BYTES)
        assert all(view.error is None for view in views.all)
        assert await redis.scard(WORKERS) == 1 + len(BYTES)
    assert caplog.text.count("a member in the registry is left out") == 1
    await registry.close()


async def test_members_of_another_type_or_too_large_are_ignored(server: RedisServer, redis: Redis) -> None:
    await redis.sadd(WORKERS, "list", "hash", "large")
    await redis.rpush(WORKER + "list", b"\xff")
    await redis.hset(WORKER + "hash", "a", "b")
    large = encode_member(make_member("large"))
    await redis.set(WORKER + "large", large + " " * MAX_MEMBER_BYTES)
    registry, member = open_registry(server.url), make_member()
    async with following(registry) as views, kept(registry.lease(member, LEASE_S)):
        await views.until_members(member)
        assert views.last.num_malformed == 3
        await redis.set(WORKER + "large", large)
        await views.until_members(member, make_member("large"))
    await registry.close()


async def test_a_worker_restores_its_overwritten_entry(
    server: RedisServer, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    registry, member = open_registry(server.url), make_member()
    key = WORKER + member.incarnation
    async with following(registry) as views, kept(registry.lease(member, LEASE_S)):
        for spoil in (redis.set(key, b"\xff"), redis.rpush(key + "/other", b"x"), redis.set(WORKERS, b"no set")):
            await views.until_members(member)
            await spoil
            await redis.delete(key + "/other")
            await listed_again(views, redis)
            await views.until_members(member)
        await redis.delete(key)
        await redis.rpush(key, b"a list")
        await views.until_members(member)
        async with asyncio.timeout(DEADLINE_S):
            while await redis.type(key) != b"string" or await redis.type(WORKERS) != b"set":
                await asyncio.sleep(0.01)
        assert 0 < await redis.pttl(key) <= LEASE_S * 1000
    assert "was no set, and is replaced by one" in caplog.text
    await registry.close()


async def test_a_listing_is_bounded(
    server: RedisServer, redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(redis_texts, "MAX_TEXTS", 300)
    await redis.sadd(WORKERS, *(f"lapsed-{index}" for index in range(20_000)))
    await redis.sadd(WORKERS, *(f"w-{index}/1" for index in range(600)))
    await redis.mset({f"{WORKER}w-{index}/1": encode_member(make_member(f"w-{index}")) for index in range(600)})
    registry = open_registry(server.url)
    async with following(registry) as views:
        view = await views.until(lambda view: view.is_listed)
        assert 300 <= len(view.members) < 600
        await listed_again(views, redis)
    assert caplog.text.count("has more members than are read") == 1
    await registry.close()


async def test_a_set_with_an_oversized_id_is_deleted_and_refilled(
    server: RedisServer, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    registry, member = open_registry(server.url), make_member()
    async with following(registry) as views, kept(registry.lease(member, LEASE_S)):
        await views.until_members(member)
        await redis.sadd(WORKERS, b"\xff" * (MAX_REPLY_BYTES + 1))
        await redis.publish(CHANGES, b"x")
        await views.until(lambda view: view.num_malformed == 1)
        await views.until_members(member)
        await views.until(lambda view: view.num_malformed == 0)
        assert await redis.smembers(WORKERS) == {member.incarnation.encode()}
    assert all(view.error is None for view in views.all)
    assert caplog.text.count("workers is deleted") == 1
    await registry.close()


async def test_an_oversized_published_message_is_ignored(server: RedisServer, redis: Redis) -> None:
    registry, member = open_registry(server.url), make_member()
    async with following(registry) as views:
        await views.until(lambda view: view.is_listed)
        await redis.publish(CHANGES, b"\xff" * (MAX_REPLY_BYTES + 1))
        await views.until(lambda view: view.num_malformed == 1)
        async with kept(registry.lease(member, LEASE_S)):
            await views.until_members(member)
    assert all(view.error is None for view in views.all)
    await registry.close()


@pytest.mark.parametrize("text", [each for each in TEXTS if b'"dead"' not in each])
def test_garbage_is_not_parsed_as_a_member(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_member(text.decode(errors="surrogateescape"))


async def test_a_rendezvous_restores_its_address_and_yields_only_to_another(server: RedisServer, redis: Redis) -> None:
    key, address = KEYS + "rendezvous:pools", "10.0.0.4:7300"
    seeker, entry = (open_address(server.url, "rendezvous", "pools") for _ in range(2))
    keeping = asyncio.create_task(entry.keep(address, 1.0))

    async def found() -> None:
        async with asyncio.timeout(DEADLINE_S):
            while await seeker.find() != address:
                await asyncio.sleep(0.01)

    await found()
    for write in ("SET", "APPEND", "RPUSH", "SADD"):
        if write in ("RPUSH", "SADD"):
            await redis.delete(key)
        with suppress(ResponseError):  # the address was restored in between
            await redis.execute_command(write, key, b"\xff")  # type: ignore[no-untyped-call]  # redis has none
        await found()
    await redis.setbit(key, 8 * 10_000_000, 1)
    await found()
    assert not keeping.done()
    keeping.cancel()
    await asyncio.wait([keeping])
    await redis.delete(key)
    await redis.hset(key, "a", "b")
    assert await seeker.find() is None
    await entry.withdraw()
    await entry.close()
    await seeker.close()


@pytest.mark.slow
async def test_random_garbage_ends_nothing(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """No follower, worker, router's report or rendezvous ends, and all entries are restored afterwards."""
    rng = random.Random(7)
    registry, member = open_registry(server.url), make_member()
    place = open_address(server.url, "rendezvous", "default")
    keeping = asyncio.create_task(place.keep("10.0.0.4:7300", LEASE_S))
    async with (
        following(registry) as views,
        kept(registry.lease(member, LEASE_S)),
        reporting(registry, "router-1", lambda: "a report"),
    ):
        for _ in range(150):
            await garbage_in_redis(server.url, rng)
            await asyncio.sleep(0.005)
        await views.until(lambda view: member in view.members and view.error is None)
        async with asyncio.timeout(DEADLINE_S):
            while await place.find() != "10.0.0.4:7300":
                assert not keeping.done(), keeping
                await asyncio.sleep(0.01)
        assert not keeping.done(), keeping
    keeping.cancel()
    await asyncio.wait([keeping])
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
    await place.close()
    await registry.close()
