"""The registry in a real Redis."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop
from redis.asyncio import Redis

from baton.membership.registry.base import LeaseLapsed
from baton.membership.registry.factory import open_registry
from baton.membership.registry.redis_client import REDIS_ERRORS, done
from baton.membership.registry.redis_registry import RECONCILE_S
from baton.worker.drain import Drain
from baton.worker.registration import registered
from tests.redis_server import HOST, RedisServer, redis_server
from tests.unit.membership.registry.registry_members import following, kept, make_member

LEASE_S = 10.0
KEYS = "baton:{default}:"


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    """Yield a Redis server without a password."""
    async with redis_server(tmp_path) as server:
        yield server


@pytest_asyncio.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    """Yield a client for reading stored values."""
    async with Redis(host=HOST, port=server.port, decode_responses=True) as client:
        yield client


async def test_an_undrained_worker_is_no_longer_listed_as_draining(server: RedisServer) -> None:
    router, member, drain = open_registry(server.url), make_member(), Drain()
    async with following(router) as views, registered(server.url, member, LEASE_S, drain):
        await views.until_members(member)
        await drain.run(60)
        await views.until_members(replace(member, draining=True))
        drain.undo()
        await views.until_members(member)
    await router.close()


async def test_changes_arrive_long_before_the_next_listing(server: RedisServer) -> None:
    workers, router = open_registry(server.url), open_registry(server.url)
    first, second = make_member(), make_member("prefill-0", role="prefill")
    clock = asyncio.get_running_loop().time
    async with following(router) as views:
        await views.until(lambda view: view.is_listed)
        begun_s = clock()
        async with kept(workers.lease(second, LEASE_S)):
            async with kept(workers.lease(first, LEASE_S)) as lease:
                await views.until_members(first, second)
                draining = replace(first, draining=True)
                lease.update(draining)
                await views.until_members(draining, second)
            await views.until_members(second)
        await views.until_members()
        assert clock() - begun_s < RECONCILE_S
    await workers.close()
    await router.close()


async def test_a_lease_expires_after_its_worker_dies(server: RedisServer, redis: Redis) -> None:
    registry, member = open_registry(server.url), make_member()
    keeping = asyncio.create_task(registry.lease(member, 1.0).keep())
    async with following(registry) as views:
        await views.until_members(member)
        assert 0 < await redis.pttl(KEYS + "worker:decode-0/1") <= 1000
        keeping.cancel()  # without a withdrawal, as when its host is lost
        await views.until_members()
    assert await redis.keys("*") == []  # it is not left in the set either
    await registry.close()


async def test_a_lease_is_renewed(server: RedisServer) -> None:
    registry, member = open_registry(server.url), make_member()
    async with following(registry) as views, kept(registry.lease(member, 1.0)):
        await views.until_members(member)
        count = len(views.all)
        await views.until(lambda _: len(views.all) == count + 1)  # one listing later, after more than two leases
        assert views.last.members == (member,)
    await registry.close()


async def test_a_worker_logs_its_expired_lease_and_registers_again(
    server: RedisServer, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    registry, member = open_registry(server.url), make_member()
    async with following(registry) as views, kept(registry.lease(member, 1.0)):
        await views.until_members(member)
        await redis.flushall()
        await redis.publish(KEYS + "changes", "anything")
        await views.until_members()
        await views.until_members(member)
    assert "the lease of decode-0 at redis://" in caplog.text
    assert "had lapsed; it is registered again" in caplog.text
    await registry.close()


async def test_a_worker_stopped_beyond_its_lease_does_not_return_with_the_same_incarnation(
    server: RedisServer, redis: Redis
) -> None:
    registry, member = open_registry(server.url), make_member()
    keeping = asyncio.create_task(registry.lease(member, 0.2).keep())
    async with following(registry) as views:
        await views.until_members(member)
        time.sleep(0.6)  # noqa: ASYNC251  # as when the process is stopped, or its machine is moved
        with pytest.raises(LeaseLapsed, match=r"decode-0 stood still for longer than its lease of 0\.2 s"):
            await keeping
        await views.until_members()
    await registry.close()


async def test_members_are_kept_while_redis_is_lost(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    workers, router, member = open_registry(server.url), open_registry(server.url), make_member()
    async with following(router) as views, kept(workers.lease(member, LEASE_S)) as lease:
        await views.until_members(member)
        await server.kill()
        lost = await views.until(lambda view: view.error is not None)
        assert lost.members == (member,)
        assert lost.is_listed
        assert f"connecting to {HOST}:{server.port}" in str(lost.error)
        lease.update(draining := replace(member, draining=True))
        async with asyncio.timeout(20):
            while "is lost, this worker serves on" not in caplog.text:
                await asyncio.sleep(0.01)
        await server.start()  # empty
        await views.until_members(draining)
    assert caplog.text.count("is lost, serving on with the workers known") == 1  # for any number of attempts
    assert caplog.text.count("is lost, this worker serves on") == 1
    assert "is back, with" in caplog.text
    await workers.close()
    await router.close()


async def test_a_redis_that_does_not_respond_is_lost(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.membership.registry.redis_client.TIMEOUT_S", 0.2)
    registry, member = open_registry(server.url), make_member()
    async with following(registry) as views, kept(registry.lease(member, LEASE_S)):
        await views.until_members(member)
        server.pause()
        try:
            lost = await views.until(lambda view: view.error is not None)
            assert lost.members == (member,)
        finally:
            server.resume()
        await views.until_members(member)
    await registry.close()


async def test_a_redis_that_is_missing_at_the_start_is_lost(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    registry, member = open_registry(server.url), make_member()
    async with following(registry) as views, kept(registry.lease(member, LEASE_S)):
        view = await views.until(lambda view: view.error is not None)
        assert not view.is_listed
        await server.start()
        await views.until_members(member)
    await server.kill()
    await registry.close()


async def test_passwords_are_sent_and_not_logged(tmp_path: Path) -> None:
    async with redis_server(tmp_path, "--requirepass", "s@cret") as server:
        place = f"{HOST}:{server.port}"
        good, bad = open_registry(f"redis://:s%40cret@{place}"), open_registry(f"redis://:wrong@{place}")
        async with following(good) as views, following(bad) as refused, kept(good.lease(make_member(), LEASE_S)):
            await views.until_members(make_member())
            view = await refused.until(lambda view: view.error is not None)
            assert "wrong" not in str(view.error)
            assert "invalid" in str(view.error)
        await good.close()
        await bad.close()


async def test_a_password_file_is_read_for_each_connection(tmp_path: Path) -> None:
    """A change of the password, with a restart of Redis, needs none of the others."""
    file = tmp_path / "password"
    file.write_text("first\n", encoding="utf-8")
    async with redis_server(tmp_path / "redis", "--requirepass", "first") as server:
        registry = open_registry(f"redis://{HOST}:{server.port}?password_file={file}")
        async with following(registry) as views, kept(registry.lease(make_member(), LEASE_S)):
            await views.until_members(make_member())
            await server.kill()
            server.options = ("--requirepass", "second")
            await server.start()
            view = await views.until(lambda view: view.error is not None and "invalid" in str(view.error))
            assert "first" not in str(view.error)
            file.unlink()
            await views.until(lambda view: view.error is not None and "password_file" in str(view.error))
            file.write_text("second", encoding="utf-8")
            await views.until(lambda view: view.error is None)
            await views.until_members(make_member())
        await registry.close()


async def test_namespaces_and_databases_are_independent(server: RedisServer) -> None:
    blue, other = open_registry(f"{server.url}?namespace=blue"), open_registry(server.url)
    far = open_registry(f"redis://{HOST}:{server.port}/1?namespace=blue")
    async with following(other) as others, following(far) as fars, kept(blue.lease(make_member(), LEASE_S)):
        async with following(blue) as blues:
            await blues.until_members(make_member())
        for views in (others, fars):
            await views.until(lambda view: view.is_listed)
            assert {view.members for view in views.all} == {()}
    for registry in (blue, other, far):
        await registry.close()


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"worker_id": "decode-1"}', '{"worker_id": 7}'])
async def test_invalid_members_are_ignored(
    server: RedisServer, redis: Redis, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry, member = open_registry(server.url), make_member()
    await redis.set(KEYS + "worker:junk", text)
    await redis.sadd(KEYS + "workers", "junk")
    async with following(registry) as views, kept(registry.lease(member, LEASE_S)):
        await views.until_members(member)
        await redis.publish(KEYS + "changes", "anything")
        count = len(views.all)
        await views.until(lambda _: len(views.all) > count)
    assert caplog.text.count("a member in the registry is left out") == 1
    await registry.close()


async def test_fields_of_a_later_version_are_ignored(server: RedisServer, redis: Redis) -> None:
    registry, member = open_registry(server.url), make_member()
    async with following(registry) as views, kept(registry.lease(member, LEASE_S)):
        await views.until_members(member)
        text = await redis.get(KEYS + "worker:decode-0/1")
        await redis.set(KEYS + "worker:later", text.replace('"decode-0/1"', '"later","colour":"blue"'))
        await redis.sadd(KEYS + "workers", "later")
        await redis.publish(KEYS + "changes", "later")
        later = replace(member, incarnation="later")
        await views.until_members(member, later)
        assert views.last.members == (member, later)
    await registry.close()


async def test_a_lease_that_changes_while_it_is_withdrawn_ends(server: RedisServer, redis: Redis) -> None:
    registry, member = open_registry(server.url), make_member()
    async with asyncio.timeout(20):
        async with following(registry) as views, kept(registry.lease(member, LEASE_S)) as lease:
            await views.until_members(member)
            lease.update(replace(member, draining=True))
            await asyncio.sleep(0)  # the change and the end arrive at the same time
    assert await redis.keys("*") == []
    await registry.close()


async def test_a_command_that_cancels_itself_counts_as_a_lost_redis() -> None:
    async def given_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(REDIS_ERRORS, match="gave the command up"):
        await done(given_up())


async def test_a_cancellation_that_a_command_swallows_takes_effect() -> None:
    async def forgetful() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return "done"

    task = asyncio.create_task(done(forgetful()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _command_over_a_lost_connection(directory: Path) -> None:
    async with redis_server(directory) as server, Redis(host=HOST, port=server.port).client() as client:
        await done(client.ping())
        assert client.connection is not None
        client.connection._writer.transport.abort()
        with pytest.raises(ConnectionError, match="the handler is closed"):
            await done(client.ping())


def test_a_connection_lost_before_a_command_is_written_is_a_lost_redis(tmp_path: Path) -> None:
    uvloop.run(_command_over_a_lost_connection(tmp_path))  # like Baton's processes
