"""Adapters at workers, while they change elsewhere."""

import asyncio
from pathlib import Path

from tests.unit.router.adapters.test_adapters import complete, load, unload
from tests.unit.router.rigs.adapter_worker import AdapterWorker, write_adapter
from tests.unit.router.rigs.running_router import running_router, until, wait_workers


async def test_adapters_that_no_router_knows_make_room(tmp_path: Path) -> None:
    worker = AdapterWorker()
    worker.max_adapters = 2
    for name in ("a", "b", "c"):
        write_adapter(tmp_path / name)
    async with running_router(worker, enable_lora=True, lora_dir=str(tmp_path)) as router:
        for name in ("a", "b"):
            assert (await load(router.http, name, name)).status_code == 200
    await worker.start()
    for name in ("a", "b"):
        worker.adapters[name] = "d" * 64  # a router that has ended left them there
    options = {"workers": (worker.address,), "enable_lora": True, "lora_dir": str(tmp_path)}
    async with running_router(**options) as router:
        await wait_workers(router.http, 1, "ready")
        for name in ("b", "c"):
            assert (await load(router.http, name, name)).status_code == 200
        assert sorted(worker.adapters) == ["b", "c"]
        response = await load(router.http, "a", "a")
        assert (response.status_code, "max_cpu_loras" in response.text) == (400, True)
        assert sorted(worker.adapters) == ["b", "c"]
    await worker.stop()


async def test_an_adapter_that_is_unloaded_while_a_worker_loads_another_one_is_not_loaded_there(tmp_path: Path) -> None:
    first, second = AdapterWorker("decode-0"), AdapterWorker("decode-1")
    for name in ("a", "b"):
        write_adapter(tmp_path / name)
    async with running_router(first, second, enable_lora=True, lora_dir=str(tmp_path)) as router:
        await second.stop()
        await wait_workers(router.http, 1, "ready")
        for name in ("a", "b"):
            assert await complete(router, name) == name
        second.may_load.clear()
        await second.start()
        await until(lambda: bool(second.loads))
        assert (await unload(router.http, "b")).status_code == 200
        second.may_load.set()
        await until(lambda: "a" in second.adapters)
        assert (await load(router.http, "b", "b")).status_code == 200  # after the loop's turn
        assert [name for name, _ in second.loads] == ["a", "b"]


async def test_files_that_one_worker_found_changed_are_read_by_all(tmp_path: Path) -> None:
    """A worker drops an adapter whose files have changed since it left memory; the others had no reason to read it."""
    first, second = AdapterWorker("decode-0"), AdapterWorker("decode-1")
    write_adapter(tmp_path / "a")
    async with running_router(first, second, enable_lora=True, lora_dir=str(tmp_path)) as router:
        assert await complete(router, "a") == "a"
        digest = first.adapters["a"]
        assert second.adapters["a"] == digest
        write_adapter(tmp_path / "a", "other weights")
        del first.adapters["a"]
        first.news()
        await until(lambda: {first.adapters.get("a"), second.adapters.get("a")}.isdisjoint({digest, None}))
        assert second.unloads == ["a"]
        body, headers = {"model": "a", "prompt": "a", "max_tokens": 1}, {"x-baton-timeout": "0.1"}
        async with asyncio.timeout(20):
            while (await router.http.post("/v1/completions", json=body, headers=headers)).status_code != 200:
                await asyncio.sleep(0.01)
