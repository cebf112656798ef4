"""Adapters over HTTP, at scripted workers: loading, choosing, unloading, and what goes wrong."""

import asyncio
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from openai import AsyncOpenAI, NotFoundError

from baton.protos import common_pb2, router_pb2, worker_pb2
from baton.protos.router_pb2_grpc import InferenceStub
from baton.router.adapters import catalog
from tests.unit.router.rigs.adapter_worker import AdapterWorker, write_adapter
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until, wait_workers
from tests.unit.router.rigs.scripted_worker import BLOCK_SIZE, ScriptedWorker

BASE = "bundled_model"


async def load(http: httpx.AsyncClient, name: str, path: Path | str, **more: object) -> httpx.Response:
    """Ask the router to load an adapter."""
    return await http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path), **more})


async def unload(http: httpx.AsyncClient, name: str) -> httpx.Response:
    """Ask the router to unload an adapter."""
    return await http.post("/v1/unload_lora_adapter", json={"lora_name": name})


async def complete(router: RunningRouter, model: str, **options: Any) -> str:
    """Generate at a model; return the name of the model in the response."""
    completion = await router.openai.completions.create(model=model, prompt="hello there", max_tokens=2, **options)
    return completion.model


async def model_ids(openai: AsyncOpenAI) -> list[str]:
    """Return the ids that /v1/models lists."""
    return [model.id async for model in await openai.models.list()]


def message_of(response: httpx.Response) -> str:
    """Return the text of an error in OpenAI's shape."""
    message: str = response.json()["error"]["message"]
    return message


async def test_an_adapter_is_loaded_at_all_workers_chosen_by_name_and_unloaded(tmp_path: Path) -> None:
    workers = AdapterWorker("decode-0"), AdapterWorker("prefill-0", worker_pb2.WORKER_ROLE_PREFILL)
    path = write_adapter(tmp_path / "sql")
    async with running_router(*workers, enable_lora=True, lora_dir=str(tmp_path)) as router:
        loaded = await load(router.http, "sql", path)
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
        assert [worker.loads for worker in workers] == [[("sql", str(path))]] * 2

        assert await complete(router, "sql") == "sql"
        assert await complete(router, BASE) == BASE
        digests = [(command.adapter, command.adapter_digest) for command in workers[0].commands]
        assert digests == [("sql", workers[0].adapters["sql"]), ("", "")]
        models = {model.id: model for model in (await router.openai.models.list()).data}
        card: Mapping[str, Any] = models["sql"].model_dump()
        assert (card["parent"], card["root"]) == (BASE, str(path))
        assert (await router.openai.models.retrieve("sql")).id == "sql"

        assert (await router.http.get("/pools?model=sql")).json()["model"] == BASE
        page = (await router.http.get("/metrics")).text
        labels = f'lora_name="sql",model_name="{BASE}"'
        assert f"baton:lora_generation_tokens_total{{{labels}}} 2.0" in page
        assert f"baton:lora_prompt_tokens_total{{{labels}}}" in page
        unloaded = await unload(router.http, "sql")
        assert (unloaded.status_code, unloaded.text) == (200, "Success: LoRA adapter 'sql' removed successfully.")
        assert [worker.adapters for worker in workers] == [{}, {}]
        assert await model_ids(router.openai) == [BASE]


async def test_an_unknown_name_is_a_404(tmp_path: Path) -> None:
    async with running_router(AdapterWorker(), enable_lora=True, lora_dir=str(tmp_path)) as router:
        with pytest.raises(NotFoundError, match="The model `sql` does not exist"):
            await complete(router, "sql")
        response = await unload(router.http, "sql")
        assert (response.status_code, message_of(response)) == (404, "The lora adapter 'sql' cannot be found.")


async def test_every_api_takes_adapters(tmp_path: Path) -> None:
    write_adapter(tmp_path / "sql")
    worker, messages = AdapterWorker(), [{"role": "user", "content": "hello"}]
    bodies: Mapping[str, dict[str, object]] = {
        "/v1/chat/completions": {"messages": messages, "max_tokens": 1},
        "/v1/completions": {"prompt": "hello", "max_tokens": 1},
        "/v1/messages": {"messages": messages, "max_tokens": 1},
        "/v1/responses": {"input": "hello", "max_output_tokens": 1},
    }
    async with running_router(worker, enable_lora=True, lora_dir=str(tmp_path)) as router:
        for path, body in bodies.items():
            response = await router.http.post(path, json={"model": "sql", **body})
            assert (response.status_code, response.json()["model"]) == (200, "sql"), path
        tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hello"]}
        body = {"model_name": "sql", "inputs": [tensor], "parameters": {"max_tokens": 1}}
        inferred = await router.http.post(f"/v2/models/{BASE}/infer", json=body)
        assert (inferred.status_code, inferred.json()["model_name"]) == (200, "sql")
        async with grpc.aio.insecure_channel(router.grpc_address) as channel:
            sampling = common_pb2.SamplingParams(max_tokens=1)
            wanted = router_pb2.GenerateRequest(model="sql", text="hello", sampling=sampling)
            _ = [message async for message in InferenceStub(channel).Generate(wanted)]
        assert [command.adapter for command in worker.commands] == ["sql"] * (len(bodies) + 2)
        tokens = await router.http.post("/tokenize", json={"model": "sql", "prompt": "hello"})
        assert tokens.json()["count"] > 0


async def test_an_adapter_in_the_directory_is_loaded_on_first_use_once(tmp_path: Path) -> None:
    worker = AdapterWorker()
    write_adapter(tmp_path / "team" / "sql")
    async with running_router(worker, enable_lora=True, lora_dir=str(tmp_path)) as router:
        names = await asyncio.gather(*(complete(router, "team/sql") for _ in range(4)))
        assert names == ["team/sql"] * 4
        assert worker.loads == [("team/sql", str(tmp_path / "team" / "sql"))]


async def test_paths_outside_of_the_directory_are_refused(tmp_path: Path) -> None:
    allowed, worker = tmp_path / "allowed", AdapterWorker()
    allowed.mkdir()
    outside = write_adapter(tmp_path / "outside")
    (allowed / "link").symlink_to(outside)
    (allowed / "loop").symlink_to(allowed / "loop")
    (allowed / "file").touch()
    async with running_router(worker, enable_lora=True, lora_dir=str(allowed)) as router:
        for path in ("/etc", "../outside", str(outside), "link", "missing", ".", "file", "loop", "a\0b"):
            response = await load(router.http, "sql", path)
            assert response.status_code == 400, path
            assert "lora_path" in message_of(response)
            assert (await router.http.post("/v1/completions", json={"model": path, "prompt": "a"})).status_code == 404
    assert not worker.loads


INVALID_LOADS: tuple[tuple[dict[str, object], str], ...] = (
    ({"lora_name": "sql"}, "Both 'lora_name' and 'lora_path' must be provided."),
    ({"lora_name": "a b", "lora_path": "sql"}, "lora_name must have 1 to 128 letters"),
    ({"lora_name": "a/../b", "lora_path": "sql"}, "lora_name must have"),
    ({"lora_name": "x" * 129, "lora_path": "sql"}, "lora_name: String should have at most 128 characters"),
    ({"lora_name": BASE, "lora_path": "sql"}, "is the name of a served model"),
    ({"lora_name": "known", "lora_path": "sql"}, "The lora adapter 'known' has already been loaded."),
    ({"lora_name": "a", "lora_path": "sql", "load_inplace": True}, "load_inplace: Input should be False"),
)


async def test_invalid_loads_are_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path / "sql")
    async with running_router(AdapterWorker(), enable_lora=True, lora_dir=str(tmp_path)) as router:
        assert (await load(router.http, "known", "sql")).status_code == 200
        for body, message in INVALID_LOADS:
            response = await router.http.post("/v1/load_lora_adapter", json=body)
            assert response.status_code == 400, body
            assert message in message_of(response)


async def test_an_adapter_that_one_worker_cannot_load_is_unloaded_at_the_others(tmp_path: Path) -> None:
    able, unable = AdapterWorker("decode-0"), AdapterWorker("decode-1")
    unable.refusal_of_loads = (grpc.StatusCode.INVALID_ARGUMENT, "its rank is 64, over max_lora_rank (16)")
    write_adapter(tmp_path / "sql")
    async with running_router(able, unable, enable_lora=True, lora_dir=str(tmp_path)) as router:
        response = await load(router.http, "sql", "sql")
        assert response.status_code == 400
        reason = "worker decode-1 cannot load the adapter sql: its rank is 64, over max_lora_rank (16)"
        assert message_of(response) == reason
        assert able.adapters == {}
        assert await model_ids(router.openai) == [BASE]


async def test_different_contents_at_the_workers_are_refused(tmp_path: Path) -> None:
    first, second = AdapterWorker("decode-0"), AdapterWorker("decode-1")
    path = write_adapter(tmp_path / "sql")
    second.other_contents[str(path)] = "other weights"
    async with running_router(first, second, enable_lora=True, lora_dir=str(tmp_path)) as router:
        response = await load(router.http, "sql", path)
        assert response.status_code == 400
        assert f"{path} has different contents at the workers" in message_of(response)
        assert (first.adapters, second.adapters) == ({}, {})


async def test_workers_without_adapters_are_named(tmp_path: Path) -> None:
    write_adapter(tmp_path / "sql")
    async with running_router(ScriptedWorker(), enable_lora=True, lora_dir=str(tmp_path)) as router:
        response = await load(router.http, "sql", "sql")
        assert "worker decode-0 cannot load the adapter sql: it was started without --enable-lora" in message_of(
            response
        )


async def test_without_the_options_there_are_no_adapters(tmp_path: Path) -> None:
    async with running_router(AdapterWorker()) as router:
        response = await load(router.http, "sql", tmp_path)
        assert (response.status_code, "start it with --enable-lora" in message_of(response)) == (404, True)
    async with running_router(AdapterWorker(), enable_lora=True) as router:
        response = await load(router.http, "sql", tmp_path)
        assert (response.status_code, "--lora-dir" in message_of(response)) == (404, True)


async def test_a_worker_that_restarts_has_the_adapters_before_it_gets_requests_for_them(tmp_path: Path) -> None:
    worker = AdapterWorker()
    write_adapter(tmp_path / "sql")
    async with running_router(worker, enable_lora=True, lora_dir=str(tmp_path)) as router:
        assert (await load(router.http, "sql", "sql")).status_code == 200
        await worker.stop()
        await wait_workers(router.http, 1, "connecting")
        await worker.start()
        await wait_workers(router.http, 1, "ready")
        assert await complete(router, "sql") == "sql"  # it waits for the adapter
        assert worker.loads == [("sql", str(tmp_path / "sql"))] * 2
        assert worker.adapters


async def test_a_worker_that_joins_later_gets_the_adapters(tmp_path: Path) -> None:
    first, second = AdapterWorker("decode-0"), AdapterWorker("decode-1")
    write_adapter(tmp_path / "sql")
    async with running_router(first, second, enable_lora=True, lora_dir=str(tmp_path)) as router:
        await second.stop()
        await wait_workers(router.http, 1, "ready")
        assert (await load(router.http, "sql", "sql")).status_code == 200
        second.other_contents[str(tmp_path / "sql")] = "other weights"
        await second.start()
        await until(lambda: bool(second.loads))
        await wait_workers(router.http, 2, "ready")
        for _ in range(4):
            await complete(router, "sql")
        assert not second.commands  # its adapter has other contents


async def test_a_request_that_runs_ends_after_its_adapter_was_unloaded(tmp_path: Path) -> None:
    worker = AdapterWorker()
    write_adapter(tmp_path / "sql")
    async with running_router(worker, enable_lora=True, lora_dir=str(tmp_path)) as router:
        worker.go_on.clear()
        running = asyncio.create_task(complete(router, "sql"))
        await until(lambda: worker.num_pauses > 0)
        assert (await unload(router.http, "sql")).status_code == 200
        worker.go_on.set()
        assert await running == "sql"


async def test_modules_are_loaded_at_the_start_and_again_after_a_failure(tmp_path: Path) -> None:
    path, worker = write_adapter(tmp_path / "sql"), AdapterWorker()
    modules = (f"sql={path}", f'{{"name": "sql-2", "path": "{path}", "base_model_name": "{BASE}"}}')
    async with running_router(worker, enable_lora=True, lora_modules=modules) as router:
        await until(lambda: len(worker.adapters) == 2)
        assert await complete(router, "sql-2") == "sql-2"
        assert await model_ids(router.openai) == [BASE, "sql", "sql-2"]


async def test_a_module_that_cannot_be_loaded_is_reported_to_its_requests(tmp_path: Path) -> None:
    async with running_router(AdapterWorker(), enable_lora=True, lora_modules=(f"sql={tmp_path}",)) as router:

        async def message() -> str:
            response = await router.http.post("/v1/completions", json={"model": "sql", "prompt": "a"})
            assert response.status_code == 503
            return message_of(response)

        async with asyncio.timeout(20):
            while "has no adapter_model.safetensors" not in await message():
                await asyncio.sleep(0.01)


async def test_prefixes_are_found_by_the_contents_of_the_adapter(tmp_path: Path) -> None:
    first, second = AdapterWorker("decode-0"), AdapterWorker("decode-1")
    write_adapter(tmp_path / "sql", "weights")
    digest, prompt = hashlib.sha256(b"weights").hexdigest(), list(range(100, 100 + 10 * BLOCK_SIZE))
    async with running_router(first, second, enable_lora=True, lora_dir=str(tmp_path), policy="cost") as router:
        assert (await load(router.http, "sql", "sql")).status_code == 200
        second.cache(prompt, adapter_digest=digest)
        first.cache(prompt)
        async with asyncio.timeout(20):
            while sum(each["cached_blocks"] for each in (await router.http.get("/workers")).json()["workers"]) < 20:
                await asyncio.sleep(0.005)
        await router.openai.completions.create(model="sql", prompt=prompt, max_tokens=1)
        await router.openai.completions.create(model=BASE, prompt=prompt, max_tokens=1)
        assert [command.adapter for command in second.commands] == ["sql"]
        assert [command.adapter for command in first.commands] == [""]


async def test_a_broken_adapter_in_the_directory_is_not_read_for_every_request(tmp_path: Path) -> None:
    worker = AdapterWorker()
    (tmp_path / "sql").mkdir()
    async with running_router(worker, enable_lora=True, lora_dir=str(tmp_path)) as router:
        for _ in range(3):
            response = await router.http.post("/v1/completions", json={"model": "sql", "prompt": "a"})
            assert response.status_code == 400
            assert "worker decode-0 cannot load the adapter sql" in message_of(response)
    assert len(worker.loads) == 1


async def test_there_are_at_most_so_many_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "MAX_ADAPTERS", 2)
    for name in "abc":
        write_adapter(tmp_path / name)
    async with running_router(AdapterWorker(), enable_lora=True, lora_dir=str(tmp_path)) as router:
        assert [await complete(router, name) for name in "ab"] == ["a", "b"]
        response = await load(router.http, "c", "c")
        assert (response.status_code, "2 adapters are loaded" in message_of(response)) == (400, True)


async def test_a_batch_runs_requests_for_adapters(tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapters" / "sql")
    worker = AdapterWorker()
    options = {"enable_lora": True, "lora_dir": str(tmp_path / "adapters"), "files_dir": str(tmp_path / "files")}
    (tmp_path / "files").mkdir()
    body = {"model": "sql", "prompt": "hello", "max_tokens": 1}
    line = json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body})
    async with running_router(worker, **options) as router:
        file = await router.openai.files.create(file=("in.jsonl", line.encode()), purpose="batch")
        batch = await router.openai.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        async with asyncio.timeout(20):
            while batch.status not in ("completed", "failed"):
                batch = await router.openai.batches.retrieve(batch.id)
                await asyncio.sleep(0.01)
        assert (batch.status, [command.adapter for command in worker.commands]) == ("completed", ["sql"])


async def test_contents_that_were_replaced_at_all_workers_are_served(tmp_path: Path) -> None:
    worker, path = AdapterWorker(), write_adapter(tmp_path / "sql")
    async with running_router(worker, enable_lora=True, lora_dir=str(tmp_path)) as router:
        assert await complete(router, "sql") == "sql"
        old = worker.adapters["sql"]
        await worker.stop()
        await wait_workers(router.http, 1, "connecting")
        write_adapter(path, "new weights")
        await worker.start()
        await wait_workers(router.http, 1, "ready")
        body, headers = {"model": "sql", "prompt": "a", "max_tokens": 1}, {"x-baton-timeout": "0.1"}
        async with asyncio.timeout(20):
            while (await router.http.post("/v1/completions", json=body, headers=headers)).status_code != 200:
                await asyncio.sleep(0.01)
        assert worker.commands[-1].adapter_digest == worker.adapters["sql"] != old


async def test_requests_wait_for_the_first_worker_of_a_deployment_that_scales_to_zero(tmp_path: Path) -> None:
    worker, path = AdapterWorker(), write_adapter(tmp_path / "sql")
    address = await worker.start()
    await worker.stop()
    options = {"enable_lora": True, "lora_dir": str(tmp_path), "lora_modules": (f"module={path}",)}
    async with running_router(workers=(address,), cold_start_timeout_s=20.0, **options) as router:
        waiting = [asyncio.create_task(complete(router, name)) for name in ("sql", "module")]
        gauge = f'baton:router_waiting{{model_name="{BASE}"}} 2.0'
        async with asyncio.timeout(20):
            while gauge not in (await router.http.get("/metrics")).text:
                await asyncio.sleep(0.01)
        await worker.start()
        assert await asyncio.gather(*waiting) == ["sql", "module"]
    await worker.stop()


async def test_only_administrators_load_and_unload_where_there_are_keys(tmp_path: Path) -> None:
    write_adapter(tmp_path / "sql")
    keys = tmp_path / "keys.yaml"
    entries = [("user", "false"), ("admin", "true")]
    lines = [
        f"  - {{name: {name}, sha256: '{hashlib.sha256(name.encode()).hexdigest()}', admin: {admin}}}"
        for name, admin in entries
    ]
    keys.write_text("keys:\n" + "\n".join(lines))
    options = {"enable_lora": True, "lora_dir": str(tmp_path), "api_keys_file": str(keys), "api_key": ("operator",)}
    async with running_router(AdapterWorker(), **options) as router:
        for key, status in (("user", 403), ("admin", 200), ("operator", 400), ("nobody", 401)):
            router.http.headers["authorization"] = f"Bearer {key}"
            assert (await load(router.http, "sql", "sql")).status_code == status
        router.http.headers["authorization"] = "Bearer user"
        assert (await unload(router.http, "sql")).status_code == 403
