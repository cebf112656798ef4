"""Tables of adapters: what one router adds, others read."""

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis

from baton.deployment.local.ports import free_ports
from baton.membership.registry.base import RegistryLost
from baton.router.adapters.adapter import Adapter, decode_adapter
from baton.router.adapters.redis_table import RedisTable
from baton.router.adapters.table import AdapterTable, DirectoryTable, MemoryTable
from baton.settings.registry_url import parse_registry_url
from tests.redis_server import HOST, redis_server
from tests.unit.router.rigs.adapter_worker import AdapterWorker, write_adapter
from tests.unit.router.rigs.running_router import running_router, until

SQL = Adapter("team/sql", "/adapters/sql", "d1", 5)


async def check_tables(first: AdapterTable, second: AdapterTable) -> None:
    """Check that two tables of the same adapters agree."""
    assert await first.read() == {}
    assert await first.add(SQL) == SQL
    assert await second.add(replace(SQL, digest="d2")) == SQL  # the first one counts
    assert await second.read() == {"team/sql": SQL}
    await second.remove("team/sql")
    await second.remove("team/sql")
    assert await first.read() == {}
    assert await first.add(replace(SQL, digest="d2")) == replace(SQL, digest="d2")
    await second.add(replace(SQL, name="other"))
    assert sorted(await first.read()) == ["other", "team/sql"]


async def test_a_table_in_memory() -> None:
    table = MemoryTable()
    await check_tables(table, table)


async def test_tables_in_a_directory(tmp_path: Path) -> None:
    await check_tables(DirectoryTable(tmp_path / "table"), DirectoryTable(tmp_path / "table"))
    (tmp_path / "table" / "x.json").write_text("{}")
    assert len(await DirectoryTable(tmp_path / "table").read()) == 2
    for file in (tmp_path / "table").iterdir():
        file.write_bytes(b"")  # as after a loss of power
    assert await DirectoryTable(tmp_path / "table").add(SQL) == SQL
    assert await DirectoryTable(tmp_path / "table").read() == {SQL.name: SQL}
    (tmp_path / "file").touch()
    with pytest.raises(RegistryLost, match="file"):
        await DirectoryTable(tmp_path / "file" / "table").add(SQL)


async def test_tables_in_redis_survive_malformed_entries_and_report_its_loss(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as server, AsyncExitStack() as stack:
        url = parse_registry_url(server.url)
        first, second, other = RedisTable(url, "base"), RedisTable(url, "base"), RedisTable(url, "other")
        for table in (first, second, other):
            stack.push_async_callback(table.close)
        await check_tables(first, second)
        assert await other.read() == {}
        async with Redis(host=HOST, port=server.port) as client:
            [key] = await client.keys("*adapters*")
            await client.hset(key, "team/sql", b"\xff")
            await client.hset(key, "wrong", SQL.encode())
            assert list(await first.read()) == ["other"]
            assert await first.add(SQL) == SQL
            await client.set(key, "no hash")
        assert await first.add(SQL) == SQL
        assert await second.read() == {"team/sql": SQL}
        await server.kill()
        with pytest.raises(RegistryLost):
            await first.read()


async def test_requests_for_adapters_get_503_while_the_list_was_never_read(tmp_path: Path) -> None:
    lost = f"redis://{HOST}:{free_ports(HOST, 1)[0]}/0"
    async with running_router(enable_lora=True, lora_dir=str(tmp_path), registry=lost) as router:
        response = await router.http.post("/v1/completions", json={"model": "sql", "prompt": "a"})
        assert response.status_code == 503
        assert "the list of adapters cannot be reached" in response.text
        response = await router.http.post("/v1/load_lora_adapter", json={"lora_name": "sql", "lora_path": "sql"})
        assert response.status_code == 503


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"name": "a b", "path": "/a", "digest": "d"}', '{"name": "a", "path": 1, "digest": "d"}', "x"],
)
def test_texts_that_are_no_adapter(text: str) -> None:
    with pytest.raises(ValueError, match=r"no adapter|not an adapter|missing|unexpected|wrong type"):
        decode_adapter(text)
    assert decode_adapter(SQL.encode()[:-1] + ', "later": 1}') == SQL


async def test_routers_agree_and_a_router_that_restarts_knows_the_adapters(tmp_path: Path) -> None:
    worker = AdapterWorker()
    write_adapter(tmp_path / "sql")
    options = {"enable_lora": True, "lora_dir": str(tmp_path), "adapters_dir": str(tmp_path / "list")}
    body = {"model": "sql", "prompt": "a", "max_tokens": 1}
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(running_router(worker, **options))
        second = await stack.enter_async_context(running_router(workers=(worker.address,), **options))
        await until(lambda: worker.num_watches == 2)
        loaded = await first.http.post("/v1/load_lora_adapter", json={"lora_name": "sql", "lora_path": "sql"})
        assert loaded.status_code == 200
        assert (await second.http.post("/v1/completions", json=body)).status_code == 200  # without a pause
    async with running_router(worker, **options) as third:
        assert (await third.http.post("/v1/completions", json=body)).status_code == 200
        assert (await third.http.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})).status_code == 200
        assert not worker.adapters
    module = write_adapter(tmp_path / "sql-2", "other weights")
    async with running_router(worker, **options) as fourth:  # an adapter of an earlier start has another path now
        assert (await fourth.http.post("/v1/completions", json=body)).status_code == 200
    async with running_router(worker, **options, lora_modules=(f"sql={module}",)):
        await until(lambda: ("sql", str(module)) in worker.loads and bool(worker.adapters))
    assert worker.loads.pop() == ("sql", str(module))
    assert set(worker.loads) == {("sql", str(tmp_path / "sql"))}
