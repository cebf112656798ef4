"""Models of one router: what one of them does and what they share."""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton.membership.registry.router_report import decode_report
from tests.unit.router.api_keys import TestKeys, bearer
from tests.unit.router.models.two_models import FIRST, OTHER, other_worker, two_models
from tests.unit.router.rigs.running_router import RunningRouter, until, wait_workers, worker_states
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

BODY: dict[str, Any] = {"prompt": [300] * 10, "max_tokens": 5, "temperature": 0}


async def complete(router: RunningRouter, model: str, **headers: str) -> httpx.Response:
    return await router.http.post("/v1/completions", json={**BODY, "model": model}, headers=headers)


async def samples(router: RunningRouter) -> dict[tuple[str, str], float]:
    """Return the samples with a model's name and no other label, by name and model; each family occurs once."""
    families = list(text_string_to_metric_families((await router.http.get("/metrics")).text))
    assert len({family.name for family in families}) == len(families), "a family occurs twice"
    return {
        (sample.name, sample.labels["model_name"]): sample.value
        for family in families
        for sample in family.samples
        if set(sample.labels) == {"model_name"}
    }


async def models_of_workers(router: RunningRouter) -> set[tuple[str, str | None]]:
    """Return the address and model of each connection."""
    workers = (await router.http.get("/workers")).json()["workers"]
    return {(each["address"], each.get("model")) for each in workers}


async def test_metrics_count_by_model(tmp_path: Path) -> None:
    async with two_models(tmp_path) as router:
        for model in (FIRST, OTHER, OTHER):
            assert (await complete(router, model)).status_code == 200
        found = await samples(router)
        for model, count in ((FIRST, 1), (OTHER, 2)):
            assert found["baton:generation_tokens_total", model] == 5 * count
            assert found["baton:e2e_request_latency_seconds_count", model] == count
            assert found["baton:router_inflight", model] == 0
            assert found["baton:registry_members", model] == 2
        assert found["baton:router_unread_bytes", ""] == found["baton:router_body_bytes", ""] == 0
        text = (await router.http.get("/metrics")).text
        assert f'baton:num_requests_running{{model_name="{FIRST}",worker="decode-0"}}' in text
        assert f'baton:num_requests_running{{model_name="{OTHER}",worker="decode-1"}}' in text
        for model in (FIRST, OTHER):  # decoding workers in the state ready
            assert f'baton:workers{{model_name="{model}",role="decode",state="ready"}} 1.0' in text


async def test_reports_are_of_one_model_each(tmp_path: Path) -> None:
    async with two_models(tmp_path) as router:
        assert (await complete(router, OTHER)).status_code == 200
        reports = {}
        for model, count in ((FIRST, 0), (OTHER, 1)):
            reports[model] = decode_report((await router.http.get("/pools", params={"model": model})).text)
            assert (reports[model].model, reports[model].traffic.num_requests) == (model, count)
            assert len(reports[model].workers) == 1
        assert reports[FIRST].router_id != reports[OTHER].router_id  # the registry keeps both
        assert (await router.http.get("/pools")).status_code == 400
        assert (await router.http.get("/pools", params={"model": "nothing"})).status_code == 404


async def test_a_lost_worker_of_one_model_leaves_the_other_undisturbed(tmp_path: Path) -> None:
    first, other = ScriptedWorker(), other_worker()
    async with two_models(tmp_path, first, other, failover_timeout_s=0.01, failover_attempts=0) as router:
        other.go_on.clear()
        running = asyncio.create_task(complete(router, OTHER))
        await until(lambda: bool(other.commands))
        await first.stop()
        await wait_workers(router.http, 1)
        assert (await complete(router, FIRST)).status_code == 503
        other.go_on.set()
        assert (await running).status_code == (await complete(router, OTHER)).status_code == 200
        assert (await router.http.get("/ready")).json() == {"status": "degraded", "registry": "connected"}
        states = {each["model"]: each for each in (await router.http.get("/workers")).json()["router"]["models"]}
        assert (states[FIRST]["ready"], states[OTHER]["ready"]) == (False, True)
        await first.start()
        await wait_workers(router.http, 2)
        assert (await complete(router, FIRST)).status_code == 200
        await other.stop()
        await first.stop()
        await wait_workers(router.http, 0)
        assert (await router.http.get("/ready")).status_code == 503


async def test_the_queue_of_one_model_is_not_that_of_another(tmp_path: Path) -> None:
    first, other = ScriptedWorker(), other_worker()
    first.go_on.clear()
    async with two_models(tmp_path, first, other, max_inflight=8, max_queue=1) as router:
        # The first model may have the 6 places that are not reserved for the other one, and one more waits.
        running = [asyncio.create_task(complete(router, FIRST)) for _ in range(7)]
        await until(lambda: len(first.commands) == 6)
        while (await samples(router))["baton:router_waiting", FIRST] < 1:
            await asyncio.sleep(0.01)
        assert (await complete(router, FIRST)).status_code == 429
        assert (await complete(router, OTHER)).status_code == 200
        first.go_on.set()
        assert {each.status_code for each in await asyncio.gather(*running)} == {200}


async def test_a_request_has_at_most_the_completions_that_its_model_has_places_for(tmp_path: Path) -> None:
    async with two_models(tmp_path, max_inflight=8) as router:
        body = {**BODY, "model": FIRST, "temperature": 1}
        assert (await router.http.post("/v1/completions", json={**body, "n": 2})).status_code == 200
        answer = await router.http.post("/v1/completions", json={**body, "n": 3})
        assert answer.json()["error"]["message"] == "n is 3, over the limit of 2 completions of one request"


async def test_the_limits_of_a_key_count_over_all_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.router.auth.client.CHECK_INTERVAL_S", 0.0)
    keys = TestKeys(tmp_path)
    key = keys.add("a", max_inflight=1)
    first = ScriptedWorker()
    first.go_on.clear()
    async with two_models(tmp_path, first, other_worker(), api_keys_file=str(keys.path)) as router:
        running = asyncio.create_task(complete(router, FIRST, **bearer(key)))
        await until(lambda: bool(first.commands))
        assert (await complete(router, OTHER, **bearer(key))).status_code == 429
        first.go_on.set()
        assert (await running).status_code == 200
        assert (await complete(router, OTHER, **bearer(key))).status_code == 200


def untimed(events: str) -> str:
    """Return the events without the seconds at which their responses began."""
    return re.sub(r'"created":\d+', '"created":0', events)


async def test_a_resumed_stream_continues_at_its_model(tmp_path: Path) -> None:
    first, other = ScriptedWorker(), other_worker()
    body = {**BODY, "model": OTHER, "stream": True, "return_token_ids": True}
    headers = {"x-request-id": "r-1", "x-baton-resumable": "true"}
    async with two_models(tmp_path, first, other) as router:
        whole = await router.http.post("/v1/completions", json=body, headers=headers)
        ids = [line.removeprefix("id: ") for line in whole.text.splitlines() if line.startswith("id: ")]
        resume = {**headers, "x-baton-resume": f"r-1; tokens={ids[1]}"}
        rest = await router.http.post("/v1/completions", json=body, headers=resume)
        assert rest.status_code == 200, rest.text
        assert untimed(rest.text).split("\n\n")[-3:] == untimed(whole.text).split("\n\n")[-3:]
        assert (len(first.commands), len(other.commands)) == (0, 2)
        keys = [command.resume_key for command in other.commands]
        assert keys[0] == keys[1] != b""


async def test_a_drain_waits_for_all_models(tmp_path: Path) -> None:
    other = other_worker()
    other.go_on.clear()
    async with two_models(tmp_path, ScriptedWorker(), other) as router:
        running = asyncio.create_task(complete(router, OTHER))
        await until(lambda: bool(other.commands))
        router.stopping.set()
        await asyncio.sleep(0.05)
        other.go_on.set()
        assert (await running).status_code == 200


async def test_all_models_get_an_error_at_the_drain_timeout(tmp_path: Path) -> None:
    first, other = ScriptedWorker(), other_worker()
    first.go_on.clear()
    other.go_on.clear()
    async with two_models(tmp_path, first, other, drain_timeout_s=0.05) as router:
        running = [asyncio.create_task(complete(router, model)) for model in (FIRST, OTHER)]
        await until(lambda: bool(first.commands and other.commands))
        router.stopping.set()
        for answer in await asyncio.gather(*running):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "router_draining")


async def test_a_worker_that_serves_another_model_after_a_restart_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.router.workers.connection.GIVE_UP_S", 1000.0)  # its first pool gives it up at once
    first, other = ScriptedWorker(), other_worker()
    async with two_models(tmp_path, first, other) as router:
        assert (await complete(router, FIRST)).headers["x-baton-decode"] == "decode-0"
        for model in (OTHER, FIRST):
            await first.stop()
            first.model = model
            await first.start()
            async with asyncio.timeout(10):
                while await models_of_workers(router) != {(first.address, model), (other.address, OTHER)}:
                    await asyncio.sleep(0.01)
            answer = await complete(router, model, **{"x-baton-decode": "decode-0"})
            assert answer.headers["x-baton-decode"] == "decode-0"


async def test_a_worker_of_an_unknown_model_is_refused(tmp_path: Path) -> None:
    first, other = ScriptedWorker(), other_worker()
    async with two_models(tmp_path, first, other) as router:
        await other.stop()
        other.model = "unknown"
        await other.start()
        reason = f"the worker at {other.address} is refused: it serves unknown, not {FIRST}, {OTHER}"
        async with asyncio.timeout(10):
            while (await worker_states(router.http))[other.address].get("last_error") != reason:
                await asyncio.sleep(0.01)
        assert (await complete(router, OTHER)).status_code == 503
        assert (await complete(router, FIRST)).status_code == 200
