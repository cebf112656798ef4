"""The stores in memory and in a real Redis: the same operations have the same results."""

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from baton.router.auth.api_key import ApiKey
from baton.router.config import RouterConfig
from baton.router.responses.store.base import (
    MAX_CHAIN_BYTES,
    MAX_TURNS,
    RECORD_OVERHEAD,
    Chain,
    Record,
    ResponseStore,
    StoreLimits,
    StoreLost,
    TenantId,
    tenant_of,
)
from baton.router.responses.store.factory import off_reason, open_store
from baton.router.responses.store.memory_store import MemoryStore
from baton.router.responses.store.redis_store import PAUSE_S, RedisStore
from baton.settings.registry_url import parse_registry_url
from tests.redis_server import HOST, RedisServer, redis_server

ME, YOU = tenant_of(None), tenant_of(ApiKey(name="you", digest=b""))
SIZE = 1000  # of a record
CONTENT = bytes(SIZE - RECORD_OVERHEAD)
LIMITS = StoreLimits(ttl_s=600, max_bytes=10 * SIZE, tenant_bytes=6 * SIZE)


class Stores:
    """Makes stores of one kind, empty ones."""

    def __init__(self, server: RedisServer | None, stack: AsyncExitStack) -> None:
        self._server = server
        self._stack = stack

    async def make(self, limits: StoreLimits = LIMITS) -> ResponseStore:
        """Return a new store."""
        if self._server is None:
            return MemoryStore(limits)
        async with Redis(host=HOST, port=self._server.port) as redis:
            await redis.flushall()
        store = RedisStore(parse_registry_url(self._server.url), limits)
        self._stack.push_async_callback(store.close)
        return store


@pytest_asyncio.fixture(params=["memory", "redis"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    async with AsyncExitStack() as stack:
        server = None
        if request.param == "redis":
            server = await stack.enter_async_context(redis_server(tmp_path))
        yield Stores(server, stack)


async def ids(store: ResponseStore, *wanted: str, tenant: TenantId = ME) -> list[str]:
    """Return those of the ids that are stored."""
    return [each for each in wanted if await store.get(tenant, each) is not None]


async def test_records_are_those_of_their_tenant(stores: Stores) -> None:
    store = await stores.make()
    record = Record("resp_0", b"\n\x00text")
    assert await store.put(ME, "resp_1", record)
    assert await store.get(ME, "resp_1") == record
    assert await store.get(YOU, "resp_1") is None
    assert await store.chain(YOU, "resp_1") == Chain(missing_id="resp_1")
    assert not await store.delete(YOU, "resp_1")
    assert await store.delete(ME, "resp_1")
    assert not await store.delete(ME, "resp_1")
    assert await store.get(ME, "resp_1") is None


async def test_a_conversation_is_read_from_its_first_response(stores: Stores) -> None:
    store = await stores.make()
    records = [Record(f"r{place - 1}" if place else None, bytes([place])) for place in range(4)]
    for place, record in enumerate(records):
        await store.put(ME, f"r{place}", record)
    assert await store.chain(ME, "r3") == Chain(tuple(records))
    assert await store.chain(ME, "r0") == Chain((records[0],))
    await store.delete(ME, "r1")
    assert await store.chain(ME, "r3") == Chain(missing_id="r1")


async def test_the_least_recently_continued_make_room(stores: Stores) -> None:
    store = await stores.make()
    for place in range(6):
        await store.put(ME, f"r{place}", Record(None, CONTENT))
        await asyncio.sleep(0.002)  # Redis orders by milliseconds
    await store.chain(ME, "r0")
    await store.put(ME, "new", Record(None, CONTENT))
    assert await ids(store, "r0", "r1", "r2", "new") == ["r0", "r2", "new"]
    for place in range(5):  # the whole store has room for four more
        await store.put(YOU, f"y{place}", Record(None, CONTENT))
        await asyncio.sleep(0.002)
    assert await ids(store, "r0", "r2", "r3", "new") == ["r0", "r3", "new"]
    assert len(await ids(store, *(f"y{place}" for place in range(5)), tenant=YOU)) == 5


async def test_a_record_that_is_too_large(stores: Stores) -> None:
    store = await stores.make()
    await store.put(ME, "small", Record(None, b"a"))
    assert not await store.put(ME, "large", Record(None, bytes(6 * SIZE)))
    assert await ids(store, "small", "large") == ["small"]


async def test_records_expire(stores: Stores) -> None:
    store = await stores.make(StoreLimits(ttl_s=0.4, max_bytes=10 * SIZE, tenant_bytes=10 * SIZE))
    await store.put(ME, "old", Record(None, CONTENT))
    await store.put(ME, "kept", Record(None, CONTENT))
    await asyncio.sleep(0.25)
    await store.chain(ME, "kept")
    await asyncio.sleep(0.25)
    assert await ids(store, "old", "kept") == ["kept"]
    await asyncio.sleep(0.3)
    for place in range(10):  # those that expired take no room
        await store.put(ME, f"r{place}", Record(None, CONTENT))
    assert len(await ids(store, *(f"r{place}" for place in range(10)))) == 10


async def test_conversations_that_are_too_long(stores: Stores) -> None:
    store = await stores.make(StoreLimits(ttl_s=600, max_bytes=1 << 30, tenant_bytes=1 << 30))
    for place in range(MAX_TURNS + 1):
        await store.put(ME, f"r{place}", Record(f"r{place - 1}" if place else None, b"a"))
    assert len((await store.chain(ME, f"r{MAX_TURNS - 1}")).records) == MAX_TURNS
    assert (await store.chain(ME, f"r{MAX_TURNS}")).is_too_long
    half = bytes(MAX_CHAIN_BYTES // 2)
    await store.put(ME, "a", Record(None, half))
    await store.put(ME, "b", Record("a", half))
    assert (await store.chain(ME, "b")).is_too_long
    assert len((await store.chain(ME, "a")).records) == 1


async def test_both_stores_do_the_same(tmp_path: Path) -> None:
    """Random operations, one each few ms: Redis orders by milliseconds."""
    rng = random.Random(5)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(redis_server(tmp_path))
        memory, redis = MemoryStore(LIMITS), await Stores(server, stack).make()
        for number in range(250):
            tenant, other = rng.choice((ME, YOU)), f"r{rng.randrange(max(number, 1))}"
            match rng.randrange(4):
                case 0 | 1:
                    previous = other if rng.random() < 0.7 else None
                    record = Record(previous, rng.randbytes(rng.randrange(3 * SIZE)))
                    arguments = (tenant, f"r{number}", record)
                    assert await memory.put(*arguments) == await redis.put(*arguments)
                case 2:
                    for recent in range(max(0, number - 12), number):
                        assert await memory.chain(tenant, f"r{recent}") == await redis.chain(tenant, f"r{recent}")
                        await asyncio.sleep(0.002)
                case _:
                    assert await memory.delete(tenant, other) == await redis.delete(tenant, other)
            memory.check_integrity()
            await asyncio.sleep(0.002)
        async with Redis(host=HOST, port=server.port) as client:
            assert int(await client.hget("baton:{default}:response-bytes", "total") or 0) == memory.num_bytes  # type: ignore[misc]  # redis' types
            keys = {key.decode() for key in await client.keys("baton:{default}:response:*")}
            assert len(keys) == await client.zcard("baton:{default}:responses")
            assert all([await client.pttl(key) > 0 for key in await client.keys("*")])


async def test_the_oldest_make_room_after_redis_clock_went_back(tmp_path: Path) -> None:
    names = [f"r{place}" for place in range(6)]
    async with redis_server(tmp_path) as server, Redis(host=HOST, port=server.port) as client:
        store = RedisStore(parse_registry_url(server.url), LIMITS)
        for name in names:
            await store.put(ME, name, Record(None, CONTENT))
        for key in ("baton:{default}:responses", f"baton:{{default}}:responses:{ME}"):  # as if by a clock ahead
            scores = dict(await client.zrange(key, 0, -1, withscores=True))
            await client.zadd(key, {member: score + LIMITS.ttl_s / 2 * 1e6 for member, score in scores.items()})
        for name in ("a", "b", "c"):
            await store.put(ME, name, Record(None, CONTENT))
        assert await ids(store, *names, "a", "b", "c") == [*names[3:], "a", "b", "c"]
        await store.close()


async def test_redis_holds_something_else(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as server, Redis(host=HOST, port=server.port) as client:
        store = RedisStore(parse_registry_url(server.url), LIMITS)
        for key in ("baton:{default}:responses", "baton:{default}:response-bytes", f"baton:{{default}}:responses:{ME}"):
            await client.set(key, "a")
        assert await store.put(ME, "r1", Record(None, CONTENT))
        assert await ids(store, "r1") == ["r1"]
        await client.zadd("baton:{default}:responses", {"no member": 1, b"\xff": 2})
        await client.hset("baton:{default}:response-bytes", "total", 10 * SIZE)  # type: ignore[misc]  # redis' types
        assert await store.put(ME, "r2", Record(None, CONTENT))
        assert await ids(store, "r2") == ["r2"]
        await store.close()


async def test_an_account_needs_the_documented_commands(tmp_path: Path) -> None:
    documented = (Path(__file__).parents[4] / "docs" / "registry.md").read_text()
    sentence = documented.partition("An account for Baton needs the commands")[2].partition("without these")[0]
    commands = [f"+{name.lower()}" for name in re.findall(r"`([A-Z]+)`", sentence)]
    async with redis_server(tmp_path) as server, Redis(host=HOST, port=server.port) as client:
        rights = ["on", ">pw", "~baton:*", "resetchannels", "&baton:*", "-@all", *commands]
        await client.execute_command("ACL", "SETUSER", "baton", *rights)  # type: ignore[no-untyped-call]  # redis' lack
        url = f"redis://baton:pw@{HOST}:{server.port}/0"
        store = RedisStore(parse_registry_url(url), LIMITS)
        for place in range(12):
            await store.put(ME, f"r{place}", Record(None, CONTENT))
        assert (await store.chain(ME, "r11")).records
        assert await store.delete(ME, "r11")
        assert await ids(store, "r1", "r10") == ["r10"]
        await store.close()


@pytest.mark.slow
async def test_a_lost_redis_is_not_tried_for_a_second(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as server:
        store = RedisStore(parse_registry_url(server.url), LIMITS)
        await store.put(ME, "r1", Record(None, CONTENT))
        server.pause()
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        with pytest.raises(StoreLost):
            await store.chain(ME, "r1")
        paused_s = loop.time()
        results = await asyncio.gather(*(store.get(ME, "r1") for _ in range(100)), return_exceptions=True)
        assert all(isinstance(each, StoreLost) for each in results)
        assert loop.time() - paused_s < paused_s - begun_s
        server.resume()
        await asyncio.sleep(PAUSE_S)
        assert await ids(store, "r1") == ["r1"]
        await store.close()


def test_the_store_of_a_router() -> None:
    def reason(**options: object) -> str:
        config = RouterConfig(model="m", **options)  # type: ignore[arg-type]  # a test's own choice of options
        text = off_reason(config)
        assert (open_store(config) is None) == (text is not None)
        return text or ""

    assert reason() == ""
    assert "--response-store-bytes" in reason(response_store_bytes=0)
    assert "--registry" in reason(processes=2)
    assert reason(processes=2, registry="redis://127.0.0.1:1") == ""
