"""Adapters of a router that serves two models."""

from pathlib import Path

import httpx

from tests.unit.router.models.two_models import FIRST, OTHER, two_models
from tests.unit.router.rigs.adapter_worker import AdapterWorker, write_adapter
from tests.unit.router.rigs.running_router import until


def workers() -> tuple[AdapterWorker, AdapterWorker]:
    first, second = AdapterWorker("decode-0"), AdapterWorker("decode-1")
    second.model = OTHER
    return first, second


async def post(http: httpx.AsyncClient, path: str, **body: object) -> tuple[int, str]:
    """Post a body; return the status and the text of the response."""
    response = await http.post(path, json=body)
    return response.status_code, response.text


async def test_the_body_names_the_model_of_an_adapter(tmp_path: Path) -> None:
    adapters, (first, second) = tmp_path / "adapters", workers()
    write_adapter(adapters / "sql")
    async with two_models(tmp_path, first, second, enable_lora=True, lora_dir=str(adapters)) as router:
        load = {"lora_name": "sql", "lora_path": "sql"}
        loaded = await post(router.http, "/v1/load_lora_adapter", **load, base_model_name=OTHER)
        assert loaded[0] == 200, loaded
        assert (list(first.adapters), list(second.adapters)) == ([], ["sql"])
        status, text = await post(router.http, "/v1/completions", model="sql", prompt="a", max_tokens=1)
        assert status == 200, text  # though it is in the directory from which the first model loads
        assert [command.adapter for command in second.commands] == ["sql"]
        status, text = await post(router.http, "/v1/load_lora_adapter", **load, base_model_name=FIRST)
        assert (status, f"sql is the name of an adapter of {OTHER}" in text) == (400, True), text
        assert (await post(router.http, "/v1/unload_lora_adapter", lora_name="sql"))[0] == 200
        assert not second.adapters


async def test_a_module_of_the_second_model_is_not_loaded_at_the_first_on_use(tmp_path: Path) -> None:
    adapters, (first, second) = tmp_path / "adapters", workers()
    path = write_adapter(adapters / "sql")
    module = f'{{"name": "sql", "path": "{path}", "base_model_name": "{OTHER}"}}'
    options = {"enable_lora": True, "lora_dir": str(adapters), "lora_modules": (module,)}
    async with two_models(tmp_path, first, second, **options) as router:
        await until(lambda: bool(second.adapters))
        status, text = await post(router.http, "/v1/completions", model="sql", prompt="a", max_tokens=1)
        assert (status, first.loads) == (200, []), text
        assert [command.adapter for command in second.commands] == ["sql"]
