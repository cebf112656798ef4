"""The store in a real Redis."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis import Redis

from baton.kvtransfer.store import redis_store
from baton.kvtransfer.store.archive import export_blocks, import_blocks
from baton.kvtransfer.store.factory import open_source
from baton.kvtransfer.store.redis_store import RedisStore
from baton.kvtransfer.store.store import StoreUnavailable
from baton.settings.registry_url import parse_registry_url
from tests.redis_server import HOST, RedisServer, redis_server
from tests.unit.kvtransfer.store.store_rig import (
    FILE_BYTES,
    NAMESPACE,
    block_of,
    check_contract,
    key_of,
    read,
    stored,
    write,
)

NAME = f"baton:default:kv:{NAMESPACE}:{key_of(0).hex()}"


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[Redis]:
    with Redis(host=HOST, port=server.port) as client:
        yield client


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    store = RedisStore(parse_registry_url(server.url), NAMESPACE, ttl_s=600)
    yield store
    store.close()


async def test_it_keeps_the_contract(store: RedisStore) -> None:
    check_contract(store)
    assert (store.name, store.use().capacity_bytes) == ("redis", 0)


async def test_keys_have_a_prefix_and_a_time_to_live_from_the_last_use(store: RedisStore, client: Redis) -> None:
    write(store, 0)
    assert client.keys() == [NAME.encode()]
    assert client.strlen(NAME) == FILE_BYTES
    assert 500 < int(client.ttl(NAME)) <= 600
    client.expire(NAME, 100)
    assert read(store, 0)
    assert 500 < int(client.ttl(NAME)) <= 600


async def test_a_block_that_is_there_is_not_sent(
    store: RedisStore, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, 0)
    assert store.write(key_of(0), block_of(0)) == 0
    statistics = client.info("commandstats")
    assert isinstance(statistics, dict)
    assert statistics["cmdstat_set"]["calls"] == 1
    monkeypatch.setattr(store._client, "exists", lambda name: 0)  # another worker stores it just then
    assert store.write(key_of(0), block_of(0)) == 0


async def test_without_a_time_to_live_blocks_stay(server: RedisServer, client: Redis) -> None:
    store = RedisStore(parse_registry_url(server.url), NAMESPACE)
    write(store, 0)
    assert read(store, 0)
    assert client.ttl(NAME) == -1
    store.close()


async def test_other_bytes_are_a_miss_and_deleted(store: RedisStore, client: Redis) -> None:
    write(store, 0)
    value = client.get(NAME)
    assert isinstance(value, bytes)
    for changed in (value[:-1], value + b"x", b"x", value[:-1] + bytes([value[-1] ^ 1])):
        client.set(NAME, changed)
        assert not read(store, 0)
        assert not client.exists(NAME)
    client.rpush(NAME, "a list")
    assert not read(store, 0)
    write(store, 0)
    assert stored(store, range(2)) == [0]


async def test_a_block_may_not_be_larger_than_redis_stores(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "MAX_VALUE_BYTES", FILE_BYTES - 1)
    with pytest.raises(StoreUnavailable, match="a block of 1024 bytes is larger than the 1023 that Redis stores"):
        write(store, 0)


async def test_a_server_that_is_gone_is_unavailable_until_it_returns(store: RedisStore, server: RedisServer) -> None:
    write(store, 0)
    await server.kill()
    for act in (lambda: read(store, 0), lambda: write(store, 0), lambda: store.count([key_of(0)])):
        with pytest.raises(StoreUnavailable, match=f"^redis://127.0.0.1:{server.port}: ConnectionError: ") as caught:
            act()
        assert "\n" not in str(caught.value)
    await server.start()
    assert not read(store, 0)
    write(store, 0)
    assert read(store, 0)


async def test_a_server_that_hangs_is_unavailable(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "TIMEOUT_S", 0.05)
    store = RedisStore(parse_registry_url(server.url), NAMESPACE)
    write(store, 0)
    server.pause()
    with pytest.raises(StoreUnavailable, match="TimeoutError"):
        read(store, 0)
    server.resume()
    store.close()


async def test_a_full_server_is_unavailable(store: RedisStore, client: Redis) -> None:
    client.config_set("maxmemory", 1)
    with pytest.raises(StoreUnavailable, match="maxmemory"):
        write(store, 0)


async def test_the_password_is_in_a_file_and_in_no_message(tmp_path: Path) -> None:
    file = tmp_path / "password"
    async with redis_server(tmp_path, "--requirepass", "s3cret") as server:
        store = RedisStore(parse_registry_url(f"{server.url}?password_file={file}"), NAMESPACE)
        with pytest.raises(StoreUnavailable, match=r"password_file: .* No such file"):
            read(store, 0)
        file.write_text("s3cret\n")
        write(store, 0)
        store.close()
        wrong = RedisStore(parse_registry_url(f"redis://:wr0ng@{HOST}:{server.port}"), NAMESPACE)
        with pytest.raises(StoreUnavailable) as caught:
            read(wrong, 0)
        assert "wr0ng" not in str(caught.value)
        wrong.close()


def test_an_export_of_a_server_is_imported_into_another_namespace(
    store: RedisStore, server: RedisServer, client: Redis, tmp_path: Path
) -> None:
    """Damaged blocks are left out, and so are those of other clusters on the server."""
    write(store, *range(4))
    client.setrange(f"baton:default:kv:{NAMESPACE}:{key_of(3).hex()}", 50, b"damage")
    client.set(f"baton:default:kv:{NAMESPACE}:no-block", b"x")
    client.set(f"baton:other:kv:else:{key_of(0).hex()}", b"x")
    counts = export_blocks(open_source(server.url), tmp_path / "export")
    assert {name: count.num_blocks for name, count in counts.items()} == {NAMESPACE: 3}
    url = f"{server.url}?namespace=second"
    assert import_blocks(tmp_path / "export", [NAMESPACE], url, 1, ttl_s=60).num_blocks == 3
    assert import_blocks(tmp_path / "export", [NAMESPACE], url, 1, ttl_s=60).num_blocks == 0
    second = RedisStore(parse_registry_url(url), NAMESPACE)
    assert all(read(second, number) for number in range(3))
    second.close()
    assert 0 < client.ttl(NAME.replace("default", "second")) <= 60
