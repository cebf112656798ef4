"""Cache salts are derived from a secret that all routers of a cluster share and that appears nowhere."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis

from baton.deployment.local.cluster_config import load_settings
from baton.deployment.local.cluster_plan import plan_cluster
from baton.router.auth import cache_secret
from baton.router.auth.cache_secret import CacheSecret, Tenant, agreed
from baton.router.config import RouterConfig
from baton.router.secrets import without_secrets
from baton.settings.flags import flags_of
from baton.settings.values import OptionError
from tests.redis_server import HOST, RedisServer, redis_server
from tests.unit.deployment.local.test_cluster_config import CHECKPOINT, MACHINE, SOCKETS

SECRET = "of all routers in this test"
KEY = "baton:{default}:cache-secret"
DOCS = Path(__file__).parents[4] / "docs"


def salt(secret: CacheSecret) -> str:
    return Tenant("key:a", secret).salt("")


def test_salts_depend_on_the_secret_and_on_both_names() -> None:
    assert salt(CacheSecret()) != salt(CacheSecret())
    assert salt(CacheSecret(SECRET)) == salt(CacheSecret(SECRET)) != salt(CacheSecret(SECRET + "!"))
    pairs = [("ab", ""), ("a", "b"), ("", "ab"), ("b", "a")]
    assert len({CacheSecret(SECRET).salt(*pair) for pair in pairs}) == len(pairs)


async def test_routers_of_a_registry_agree_and_its_loss_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_secret, "CHECK_INTERVAL_S", 0.01)
    first, second, late, given = CacheSecret(), CacheSecret(), CacheSecret(), CacheSecret(SECRET)
    async with (
        redis_server(tmp_path) as server,
        agreed(first, server.url),
        agreed(second, server.url),
        agreed(given, server.url),
    ):
        before = salt(first)
        assert salt(second) == before != salt(given)
        await server.kill()
        await server.start()  # with nothing of what it held
        await proposed_again(server)
        async with agreed(late, server.url):
            assert salt(late) == salt(first) == salt(second) == before


@pytest.mark.parametrize("garbage", [b"", b"\xff\xfe", b"\x00", b"x" * (1 << 16), None])
async def test_an_invalid_secret_in_the_registry_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, garbage: bytes | None
) -> None:
    monkeypatch.setattr(cache_secret, "CHECK_INTERVAL_S", 0.01)
    running, started = CacheSecret(), CacheSecret()
    async with (
        redis_server(tmp_path) as server,
        Redis(host=HOST, port=server.port) as client,
        agreed(running, server.url),
    ):
        async with client.pipeline() as overwriting:
            overwriting.delete(KEY)
            if garbage is None:
                overwriting.rpush(KEY, "a list")
            else:
                overwriting.set(KEY, garbage)
            await overwriting.execute()
        async with agreed(started, server.url):
            async with asyncio.timeout(20):
                while salt(running) != salt(started):
                    await asyncio.sleep(0.01)
            assert await client.get(KEY) is not None
            assert await client.pttl(KEY) > 0


async def test_the_documented_redis_commands_are_enough(tmp_path: Path) -> None:
    commands = re.findall(r"`([A-Z]+)`", (DOCS / "registry.md").read_text().partition("needs the commands")[2])
    allowed = [f"+{command.lower()}" for command in commands[: commands.index("SUBSCRIBE") + 1]]
    first, second = CacheSecret(), CacheSecret()
    async with redis_server(tmp_path) as server, Redis(host=HOST, port=server.port) as client:
        await client.execute_command("ACL", "SETUSER", "baton", "on", ">pw", "~baton:*", "&baton:*", *allowed)
        url = f"redis://baton:pw@{HOST}:{server.port}/0"
        async with agreed(first, url), agreed(second, url):
            assert salt(first) == salt(second)


async def proposed_again(server: RedisServer) -> None:
    async with Redis(host=HOST, port=server.port) as client, asyncio.timeout(20):
        while not await client.keys("*cache-secret"):
            await asyncio.sleep(0.01)


async def test_without_a_registry_that_answers_a_router_has_its_own() -> None:
    secret = CacheSecret()
    before = salt(secret)
    async with agreed(secret, "redis://127.0.0.1:1/0"), agreed(None, None):
        assert salt(secret) == before


def test_a_short_secret_is_refused_and_not_repeated() -> None:
    with pytest.raises(OptionError, match="at least 16 characters") as caught:
        RouterConfig(model="m", cache_secret="hunter2hunter2")
    assert "hunter2" not in str(caught.value)


def test_the_secret_is_in_no_command_line_and_no_text() -> None:
    config = RouterConfig(model="m", cache_secret=SECRET, registry="redis://:pass@h:1/0")
    told, env = without_secrets(config)
    assert env == {"BATON_CACHE_SECRET": SECRET, "BATON_REGISTRY": "redis://:pass@h:1/0"}
    assert replace(told, cache_secret=SECRET, registry=config.registry) == config
    assert SECRET not in repr(config) + repr(flags_of(told))


def test_a_clusters_router_keeps_its_secret_over_restarts_and_workers_have_none() -> None:
    plan = plan_cluster(load_settings(None, {}), CHECKPOINT, MACHINE, SOCKETS)
    router, *workers = plan.specs(Path("/logs"))
    assert len(router.env["BATON_CACHE_SECRET"]) >= 32
    for spec in (router, *workers):
        assert router.env["BATON_CACHE_SECRET"] not in repr(spec.argv)
    assert all("BATON_CACHE_SECRET" not in worker.env for worker in workers)
