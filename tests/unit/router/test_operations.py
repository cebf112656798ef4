"""The routes for operators."""

import asyncio
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.processors import TemplateProcessing

from baton.protos.worker_pb2 import WORKER_ROLE_BOTH, WORKER_ROLE_PREFILL
from baton.router.metrics.pools_report import PoolsReporter
from baton.router.service import RouterService
from tests.unit.router.rigs.running_router import MODEL, running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

CHAT = "/v1/chat/completions"


async def test_models() -> None:
    async with running_router(ScriptedWorker(), served_model_name="mine") as router:
        models = [model async for model in router.openai.models.list()]
        assert [model.id for model in models] == ["mine"]
        assert (await router.openai.models.retrieve("mine")).model_dump()["max_model_len"] == 256


async def test_readiness_needs_a_worker_that_decodes() -> None:
    async with running_router(ScriptedWorker("prefill-0", WORKER_ROLE_PREFILL)) as router:
        assert (await router.http.get("/ready")).status_code == 503
    async with running_router(ScriptedWorker("both-0", WORKER_ROLE_BOTH)) as router:
        assert (await router.http.get("/ready")).status_code == 200


async def test_a_router_of_cold_starts_is_ready_unless_it_reaches_no_worker() -> None:
    async with running_router(ScriptedWorker("prefill-0", WORKER_ROLE_PREFILL), cold_start_timeout_s=60.0) as router:
        assert (await router.http.get("/ready")).status_code == 200
    async with running_router(workers=("127.0.0.1:9",), cold_start_timeout_s=60.0) as router:
        assert (await router.http.get("/ready")).status_code == 503


async def test_tokenize_and_detokenize() -> None:
    async with running_router(ScriptedWorker()) as router:
        answer = (await router.http.post("/tokenize", json={"prompt": "hello 🎉", "return_token_strs": True})).json()
        assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
        assert answer["max_model_len"] == 256
        text = (await router.http.post("/detokenize", json={"tokens": answer["tokens"]})).json()["prompt"]
        assert text == "hello 🎉"
        messages = [{"role": "user", "content": "hi"}]
        chat = (await router.http.post("/tokenize", json={"messages": messages})).json()["tokens"]
        text = (await router.http.post("/detokenize", json={"tokens": chat})).json()["prompt"]
        assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


async def test_an_empty_text_has_the_tokens_that_every_prompt_begins_with(tmp_path: Path) -> None:
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((Path(MODEL) / name).read_bytes())
    tokenizer = FastTokenizer.from_file(f"{MODEL}/tokenizer.json")
    first = tokenizer.id_to_token(0)
    tokenizer.post_processor = TemplateProcessing(single=f"{first} $A", special_tokens=[(first, 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    async with running_router(ScriptedWorker(), model=str(tmp_path)) as router:
        assert (await router.http.post("/tokenize", json={"prompt": ""})).json()["tokens"] == [0]
        body = {"prompt": "", "add_special_tokens": False}
        assert (await router.http.post("/tokenize", json=body)).json()["tokens"] == []


async def test_metrics_count_what_was_served() -> None:
    async with running_router(ScriptedWorker()) as router:
        body = {"prompt": [300] * 10, "max_tokens": 5, "temperature": 0}
        for _ in range(3):
            assert (await router.http.post("/v1/completions", json=body)).status_code == 200
        text = (await router.http.get("/metrics")).text
        samples = {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if "le" not in sample.labels
        }
        assert samples["baton:prompt_tokens_total"] == 30
        assert samples["baton:generation_tokens_total"] == 15
        assert samples["baton:request_success_total"] == 3
        assert samples["baton:time_to_first_token_seconds_count"] == 3
        assert samples["baton:inter_token_latency_seconds_count"] == 12
        assert samples["baton:request_time_per_output_token_seconds_count"] == 3
        assert samples["baton:e2e_request_latency_seconds_count"] == 3
        assert samples["baton:request_generation_tokens_sum"] == 15
        assert samples["baton:prefix_cache_queries_total"] == 30
        assert samples["baton:requests_by_plan_total"] == 3
        assert samples["baton:kv_cache_usage_perc"] == 0.1 or abs(samples["baton:kv_cache_usage_perc"] - 0.1) < 1e-9
        assert samples["baton:handovers_total"] == 3
        assert samples["baton:request_params_max_tokens_sum"] == 15
        assert samples["baton:request_params_n_sum"] == 3
        transport = 'model_name="bundled_model",peer="peer-1",reason="one host",transport="shared_memory"'
        assert f"baton:kv_transport_info{{{transport}" in text
        for name in ("requests_by_plan_total", "failovers_total", "router_inflight"):
            assert f'baton:{name}{{model_name="bundled_model"' in text
        assert 'baton:num_requests_running{model_name="bundled_model",worker="decode-0"}' in text


async def test_metrics_are_openmetrics_for_clients_that_accept_it() -> None:
    async with running_router(ScriptedWorker()) as router:
        assert (await router.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})).status_code == 200
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        page = await router.http.get("/metrics", headers={"accept": accept})
        assert page.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        families = {family.name: family for family in openmetrics.text_string_to_metric_families(page.text)}
        assert families["baton:request_success"].samples[0].value == 1
        for other in ("*/*", "text/plain", "application/json"):
            page = await router.http.get("/metrics", headers={"accept": other})
            assert page.headers["content-type"].startswith("text/plain")
            assert "# EOF" not in page.text


async def test_ping_and_version() -> None:
    async with running_router() as router:
        for method in ("GET", "POST", "HEAD"):
            answer = await router.http.request(method, "/ping")
            assert (answer.status_code, answer.content) == (200, b"")
        assert (await router.http.get("/version")).json() == {"version": metadata.version("baton-serve")}


async def test_head_is_get_without_a_body() -> None:
    async with running_router(ScriptedWorker()) as router:
        for path in (
            "/health",
            "/ready",
            "/v1/models",
            "/v1/models/bundled_model",
            "/version",
            "/docs",
            "/nothing",
            CHAT,
        ):
            got, head = await router.http.get(path), await router.http.head(path)
            assert head.status_code == got.status_code
            assert head.headers["content-length"] == got.headers["content-length"]
            assert head.content == b""


async def test_workers_report_their_state() -> None:
    decode, prefill = ScriptedWorker(), ScriptedWorker("prefill-0", WORKER_ROLE_PREFILL)
    async with running_router(decode, prefill) as router:
        body = (await router.http.get("/workers")).json()
        assert [worker["role"] for worker in body["workers"]] == ["decode", "prefill"]
        assert {worker["state"] for worker in body["workers"]} == {"ready"}
        assert body["workers"][0]["load"]["num_free_blocks"] == 900
        assert body["workers"][0]["peer_transports"] == {"peer-1": "shared_memory: one host"}
        [tier] = body["workers"][0]["kv_tiers"]
        assert (tier["name"], tier["num_blocks"], tier["saved_blocks"], tier["failures"]) == ("host", 7, 9, 0)
        offload = body["workers"][0]["weights_offload"]
        assert (offload["stored_bytes"], offload["expert_hits"], offload["wait_s"]) == (1 << 30, 3, 0.0)
        assert not {"tiers", "completed_handovers", "weights_offload"} & body["workers"][0]["load"].keys()
        assert body["router"]["ready"] is True
        await prefill.stop()
        while True:
            gone = (await router.http.get("/workers")).json()["workers"][1]
            if gone["state"] == "connecting":
                break
        assert gone["last_error"]


@pytest.mark.parametrize(
    ("path", "owner", "name"),
    [("/ready", RouterService, "is_ready"), ("/workers", RouterService, "is_ready"), ("/pools", PoolsReporter, "text")],
)
async def test_concurrent_requests_share_what_is_read_of_all_workers(
    monkeypatch: pytest.MonkeyPatch, path: str, owner: type, name: str
) -> None:
    num_reads = 0

    def counted(original: Callable[[Any], object]) -> Callable[[Any], object]:
        def call(owner: Any) -> object:
            nonlocal num_reads
            num_reads += 1
            return original(owner)

        return call

    async with running_router(ScriptedWorker()) as router:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, counted(getattr(owner, name)))
            responses = await asyncio.gather(*(router.http.get(path) for _ in range(50)))
            assert {each.status_code for each in responses} == {200}
            assert 0 < num_reads < len(responses)
