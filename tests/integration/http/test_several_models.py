"""Two real models behind one router: each serves as behind a router of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import load_file, save_file

from baton.deployment.ray.pools_observer import own_reports
from baton.membership.registry.factory import open_registry
from baton.membership.registry.router_report import decode_report
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.workers.app import simulated_workers
from baton.simulation.workers.worker_config import SimulatedWorkerConfig
from tests.embedding_models import add_pooling
from tests.integration.router_process import MODEL, RouterProcess, router_process, wait_router, wait_workers
from tests.integration.together import together
from tests.integration.worker_process import WorkerProcess, worker_process
from tests.marked_checkpoints import marked_checkpoint
from tests.redis_server import redis_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIRST, OTHER = "first", "other"
SIZE = 256
PROMPTS = ["The module json", "def read(path):\n    return", "A list of the functions " * 20]


def other_checkpoint(directory: Path) -> Path:
    """Return a model that embeds, with another vocabulary and other weights than the bundled one."""
    model = marked_checkpoint(directory, "", special=("<|mark|>",))
    weights = load_file(model / "model.safetensors")
    changed = {name: value * 0.7 if ".0.mlp." in name else value for name, value in weights.items()}
    save_file(changed, model / "model.safetensors")
    return add_pooling(model, "last", matryoshka_dimensions=[SIZE])


@dataclass(frozen=True)
class Served:
    """The workers of two models, a router for both, and one for each."""

    workers: dict[str, list[WorkerProcess]]  # by model
    both: RouterProcess
    alone: dict[str, RouterProcess]
    registry: str

    def api(self, router: RouterProcess) -> openai.AsyncOpenAI:
        """Return a client of a router."""
        return openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    directory = tmp_path_factory.mktemp("models")
    other = other_checkpoint(directory / OTHER)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(redis_server(directory / "redis"))
        registry = f"--registry={server.url}"
        flags = (registry, "--lease-s=2", "--dtype=float32")
        name = f"--served-model-name={FIRST}"
        prefill, decode, both = await stack.enter_async_context(
            together(
                worker_process("prefill", MODEL, directory, *flags, name),
                worker_process("decode", MODEL, directory, *flags, name),
                worker_process("both", other, directory, *flags),
            )
        )
        routers = together(
            router_process(directory, registry, "--port=0", name, f"--also-serve={other}"),
            router_process(directory, registry, "--port=0", name),
            router_process(directory, registry, "--port=0", f"--model={other}"),
        )
        all_models, first_alone, other_alone = await stack.enter_async_context(routers)
        workers = {FIRST: [prefill, decode], OTHER: [both]}
        found = Served(workers, all_models, {FIRST: first_alone, OTHER: other_alone}, server.url)
        for router, count in ((all_models, 3), (first_alone, 2), (other_alone, 1)):
            async with router.client() as client:
                await wait_workers(client, count)
        yield found


async def test_both_models_are_listed(served: Served) -> None:
    async with served.api(served.both) as api:
        assert [model.id for model in (await api.models.list()).data] == [FIRST, OTHER]


@pytest.mark.parametrize("model", [FIRST, OTHER])
async def test_the_tokens_are_those_of_a_router_of_its_own(served: Served, model: str) -> None:
    async with served.api(served.both) as api, served.api(served.alone[model]) as alone:
        for prompt in PROMPTS:
            options: Any = {"model": model, "prompt": prompt, "max_tokens": 12, "seed": 5, "temperature": 0.7}
            tokens = [await _tokens(client, options) for client in (api, alone)]
            assert tokens[0] == tokens[1]
        messages: Any = [{"role": "user", "content": "What does json.dumps do?"}]
        options = {"model": model, "messages": messages, "max_tokens": 12, "temperature": 0}
        chats = [await client.chat.completions.create(**options) for client in (api, alone)]
        assert chats[0].choices[0].message.content == chats[1].choices[0].message.content
        assert chats[0].model == model


async def _tokens(api: openai.AsyncOpenAI, options: dict[str, Any]) -> list[int]:
    answer = await api.completions.create(**options, extra_body={"return_token_ids": True, "ignore_eos": True})
    token_ids: list[int] = answer.choices[0].model_extra["token_ids"]  # type: ignore[index]
    assert len(token_ids) == options["max_tokens"]
    return token_ids


async def test_the_models_differ(served: Served) -> None:
    async with served.api(served.both) as api:
        options = {"prompt": PROMPTS[2], "max_tokens": 12, "temperature": 0}
        first, other = [await _tokens(api, {**options, "model": model}) for model in (FIRST, OTHER)]
        assert first != other


async def test_one_model_embeds(served: Served) -> None:
    async with served.api(served.both) as api, served.api(served.alone[OTHER]) as alone:
        found = [await each.embeddings.create(model=OTHER, input=PROMPTS) for each in (api, alone)]
        assert [each.embedding for each in found[0].data] == [each.embedding for each in found[1].data]
        assert len(found[0].data[0].embedding) == SIZE
        with pytest.raises(openai.APIStatusError):
            await api.embeddings.create(model=FIRST, input=PROMPTS)


async def test_a_handover_stays_within_a_model(served: Served) -> None:
    async with served.api(served.both) as api:
        options: Any = {"model": FIRST, "prompt": "Handed over. " * 40, "max_tokens": 4, "temperature": 0}
        headers = {"x-baton-plan": "remote"}
        answer = await api.completions.with_raw_response.create(**options, extra_headers=headers)
        assert answer.headers["x-baton-prefill"].startswith("prefill")
        assert answer.headers["x-baton-decode"].startswith("decode")
        assert int(answer.headers["x-baton-handed-over-tokens"]) > 0


async def test_a_request_without_a_name_is_refused_and_the_error_lists_the_names(served: Served) -> None:
    async with served.both.client() as client:
        answer = await client.post("/v1/completions", json={"prompt": "a"})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == f"model is required: this server has `{FIRST}`, `{OTHER}`."


async def test_metrics_and_reports_are_by_model(served: Served) -> None:
    async with served.both.client() as client:
        before = await _generated(client)
        for model in (FIRST, OTHER, OTHER):
            body = {"model": model, "prompt": "a", "max_tokens": 3, "ignore_eos": True}
            assert (await client.post("/v1/completions", json=body)).status_code == 200
        after = await _generated(client)
        assert {model: after[model] - before.get(model, 0) for model in after} == {FIRST: 3, OTHER: 6}
        workers = (await client.get("/workers")).json()["workers"]
        assert sorted(each["model"] for each in workers) == [FIRST, FIRST, OTHER]
    registry = open_registry(served.registry)
    try:
        async with asyncio.timeout(30):
            while len(texts := await registry.reports.read()) < 4:
                await asyncio.sleep(0.1)
    finally:
        await registry.close()
    reports = [decode_report(text) for text in texts]
    for model, count in ((FIRST, 2), (OTHER, 1)):  # as an autoscaler of this model's pools sees them
        own = own_reports(reports, model)
        assert [len(report.workers) for report in own] == [count, count]  # of both routers that serve it
    with pytest.raises(ValueError, match="several models"):
        own_reports(reports, None)


async def _generated(client: httpx.AsyncClient) -> dict[str, float]:
    """Return the number of generated tokens by model."""
    families = {each.name: each for each in text_string_to_metric_families((await client.get("/metrics")).text)}
    return {each.labels["model_name"]: each.value for each in families["baton:generation_tokens"].samples}


async def test_a_killed_worker_of_one_model_leaves_the_other_undisturbed(served: Served) -> None:
    async with served.api(served.both) as api, served.both.client() as client:
        options: Any = {"model": OTHER, "prompt": PROMPTS[0], "max_tokens": 200, "temperature": 0}
        options["extra_body"] = {"ignore_eos": True}
        expected = await api.completions.create(**options)
        running = [asyncio.create_task(api.completions.create(**options)) for _ in range(4)]
        served.workers[FIRST][1].child.kill()
        await wait_router(client, lambda view: not view["router"]["models"][0]["ready"])
        for each in await asyncio.gather(*running):
            assert each.choices[0].text == expected.choices[0].text
        assert (await api.completions.create(**options)).choices[0].text == expected.choices[0].text
        assert (await client.get("/ready")).status_code == 200
        with pytest.raises(openai.InternalServerError, match="no decode worker"):
            await api.completions.create(model=FIRST, prompt="a", max_tokens=1, extra_headers={"x-baton-timeout": "5"})


async def test_processes_that_share_a_port_count_by_model(tmp_path: Path) -> None:
    spec = WorkerSpec(step_s=0.002, prefill_tokens_per_s=1e6)
    configs = [
        SimulatedWorkerConfig(worker_id=f"decode-{model}", role="decode", model=model, spec=spec)
        for model in (FIRST, OTHER)
    ]
    async with simulated_workers(configs) as workers:
        addresses = ",".join(worker.address for worker in workers)
        flags = ("--processes=2", "--port=0", f"--workers={addresses}", f"--served-model-name={FIRST}")
        both = (*flags, f"--also-serve={MODEL}={OTHER}")
        async with router_process(tmp_path, *both, module=("baton", "router")) as router:
            for number in range(8):  # each over a connection of its own, so that both processes get some
                async with router.client() as client:
                    await wait_workers(client, 2)
                    body = {"model": (FIRST, OTHER)[number % 2], "prompt": [300, 301], "max_tokens": 5}
                    assert (await client.post("/v1/completions", json=body)).status_code == 200
            async with router.client() as client:
                text = (await client.get("/metrics")).text
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families), "a family occurs twice"
    [tokens] = [family for family in families if family.name == "baton:generation_tokens"]
    for model in (FIRST, OTHER):
        assert sum(each.value for each in tokens.samples if each.labels["model_name"] == model) == 20
    assert {each.labels["process"] for each in tokens.samples} == {"0", "1"}
