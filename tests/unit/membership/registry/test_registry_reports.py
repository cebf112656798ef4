"""Routers' reports in a real Redis."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from redis.asyncio import Redis

from baton.membership.registry import redis_registry as redis_reports
from baton.membership.registry import redis_texts
from baton.membership.registry.base import Registry, RegistryLost
from baton.membership.registry.factory import open_registry
from baton.membership.registry.redis_client import MAX_REPLY_BYTES
from baton.membership.registry.redis_registry import LEASE_S
from baton.membership.registry.redis_store import MAX_REPORT_BYTES
from tests.redis_server import HOST, redis_server
from tests.unit.membership.registry.registry_members import DEADLINE_S, kept, make_member, reporting

COMMANDS = "+set +pexpire +del +getrange +exists +sadd +srem +sscan +publish +subscribe"


async def read_until(registry: Registry, condition: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
    """Return the reports once they meet the condition."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with suppress(RegistryLost):
                if condition(texts := await registry.reports.read()):
                    return texts
            await asyncio.sleep(0.02)


async def test_reports_are_renewed_and_removed(tmp_path: Path) -> None:
    async with (
        redis_server(tmp_path) as server,
        Redis(host=HOST, port=server.port, decode_responses=True) as redis,
    ):
        routers, planner, numbers = open_registry(server.url), open_registry(server.url), count()
        async with kept(routers.lease(make_member(), 10.0)):  # members and reports are independent
            async with reporting(routers, "router-1", lambda: f"look {next(numbers)}"):
                await read_until(planner, lambda texts: texts == ("look 0",))
                assert 0 < await redis.pttl("baton:{default}:router:router-1") <= LEASE_S * 1000
                async with reporting(routers, "router-2", lambda: "another"):
                    await read_until(planner, lambda texts: set(texts) == {"look 1", "another"})
            assert await planner.reports.read() == ()
        assert await redis.keys("*") == []
        await routers.close()
        await planner.close()


async def test_the_bytes_read_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_texts, "MAX_LISTING_BYTES", 1 << 24)
    async with redis_server(tmp_path) as server, Redis(host=HOST, port=server.port) as redis:
        await redis.sadd("baton:{default}:routers", *range(20))
        for number in range(20):
            await redis.set(f"baton:{{default}}:router:{number}", "x" * MAX_REPORT_BYTES)
        planner = open_registry(server.url)
        assert 4 <= len(await planner.reports.read()) < 8  # whole batches are read
        await planner.close()


async def test_a_set_with_an_oversized_id_is_deleted_and_refilled(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as server, Redis(host=HOST, port=server.port) as redis:
        routers, planner = open_registry(server.url), open_registry(server.url)
        await redis.sadd("baton:{default}:routers", b"\xff" * (MAX_REPLY_BYTES + 1))
        assert await planner.reports.read() == ()
        async with reporting(routers, "router-1", lambda: "a report"):
            await read_until(planner, lambda texts: texts == ("a report",))
        await routers.close()
        await planner.close()


async def test_the_report_of_a_dead_router_expires(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as server, Redis(host=HOST, port=server.port) as redis:
        planner = open_registry(server.url)
        await redis.sadd("baton:{default}:routers", "router-1")
        await redis.set("baton:{default}:router:router-1", "its last", px=50)
        await read_until(planner, lambda texts: texts == ())
        assert await redis.keys("*") == []  # it is not left in the set either
        await planner.close()


async def test_reports_return_after_a_loss_of_redis(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as server:
        routers, planner = open_registry(server.url), open_registry(server.url)
        async with reporting(routers, "router-1", lambda: "here"):
            await read_until(planner, lambda texts: texts == ("here",))
            await server.kill()
            with pytest.raises(RegistryLost):
                await planner.reports.read()
            await server.start()
            await read_until(planner, lambda texts: texts == ("here",))
        await routers.close()
        await planner.close()


async def test_a_report_that_cannot_be_created_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_reports, "PERIOD_S", 0.01)
    numbers = count()

    def make() -> str:
        if (number := next(numbers)) < 5:
            raise ValueError("it makes no sense")
        return f"look {number}"

    async with redis_server(tmp_path) as server:
        registry = open_registry(server.url)
        with caplog.at_level(logging.DEBUG, redis_reports.logger.name):
            async with reporting(registry, "router-1", make):
                await read_until(registry, lambda texts: bool(texts))
        await registry.close()
    levels = [each.levelno for each in caplog.records if each.name == redis_reports.logger.name]
    assert levels == [logging.ERROR] + [logging.DEBUG] * 4


async def test_the_documented_permissions_are_enough(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as server:
        async with Redis(host=HOST, port=server.port) as redis:
            rights = ["on", ">secret", "~baton:*", "resetchannels", "&baton:*", "-@all", *COMMANDS.split()]
            await redis.execute_command("acl", "setuser", "baton", *rights)
            await redis.execute_command("acl", "setuser", "default", "off")
        registry = open_registry(f"redis://baton:secret@{HOST}:{server.port}/0")
        async with reporting(registry, "router-1", lambda: "here"), kept(registry.lease(make_member(), 10.0)):
            await read_until(registry, lambda texts: texts == ("here",))
        assert await registry.reports.read() == ()
        await registry.close()
