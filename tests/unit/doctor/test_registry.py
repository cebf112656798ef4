"""Checks of the registry, in a real Redis."""

import re
from pathlib import Path

from redis.asyncio import Redis

from baton.doctor.finding import Level
from baton.doctor.registry import check_registry
from baton.settings.registry_url import parse_registry_url
from tests.redis_server import HOST, redis_server


async def test_a_running_and_a_stopped_redis_are_checked(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as server:
        url = parse_registry_url(server.url)
        registry, clock = await check_registry(url)
        assert (registry.check, registry.level) == ("registry", Level.OK)
        assert re.search(r"Redis [1-9]", registry.found)
        assert (clock.check, clock.level) == ("registry-clock", Level.OK)
        async with Redis(host=HOST, port=server.port) as client:
            assert await client.dbsize() == 0  # no key is left behind
    (gone,) = await check_registry(url)
    assert (gone.check, gone.level) == ("registry", Level.FAILURE)


async def test_passwords_and_restricted_accounts_are_checked(tmp_path: Path) -> None:
    async with redis_server(tmp_path, "--requirepass", "secret") as server:
        place = server.url.removeprefix("redis://")
        (refused,) = await check_registry(parse_registry_url(server.url))
        assert (refused.check, refused.level) == ("registry", Level.FAILURE)
        async with Redis(host=HOST, port=server.port, password="secret") as client:
            commands = ("+set", "+del", "+ping", "-@all")
            account = ["acl", "setuser", "baton", "on", ">narrow", "~baton:*", commands[-1], *commands[:-1]]
            await client.execute_command(*account)
        (narrow,) = await check_registry(parse_registry_url(f"redis://baton:narrow@{place}"))
        assert (narrow.level, "may not read its version" in narrow.found) == (Level.OK, True)
        wrong = await check_registry(parse_registry_url(f"redis://baton:wrong-password@{place}"))
        assert "wrong-password" not in str(wrong)
