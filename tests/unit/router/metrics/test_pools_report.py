"""The router's report on its traffic and its workers."""

import asyncio
from pathlib import Path

import pytest

from baton.membership.registry.router_report import MAX_COUNT, MAX_MEASURED, MAX_TOKENS, RouterReport, decode_report
from baton.protos.worker_pb2 import WORKER_ROLE_PREFILL, WorkerLoad
from tests.unit.router.api_keys import TestKeys, bearer
from tests.unit.router.rigs.running_router import RunningRouter, running_router, wait_workers
from tests.unit.router.rigs.scripted_worker import BLOCK_SIZE, ScriptedWorker

BODY = {"prompt": [300] * 10, "max_tokens": 5, "temperature": 0}


async def report_of(router: RunningRouter) -> RouterReport:
    answer = await router.http.get("/pools")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    return decode_report(answer.text)


async def test_a_report_of_what_was_served() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        for num_completions in (1, 1, 2):
            body = {**BODY, "n": num_completions}
            assert (await router.http.post("/v1/completions", json=body)).status_code == 200
        for broken in ({**BODY, "prompt": [1 << 30]}, {**BODY, "max_tokens": 10_000}):
            assert (await router.http.post("/v1/completions", json=broken)).status_code == 400
        assert (await router.http.post("/tokenize", json={"prompt": "a"})).status_code == 200
        report = await report_of(router)
        assert report.model == "bundled_model"
        traffic = report.traffic
        assert (traffic.num_requests, traffic.num_waiting, traffic.oldest_wait_s) == (4, 0, 0.0)
        assert traffic.gaps_s.num == 3  # none before what was invalid
        assert (traffic.prompt_tokens.num, traffic.prompt_tokens.total) == (4, 40)
        assert (traffic.output_tokens.num, traffic.output_tokens.total) == (4, 20)
        assert (traffic.num_generated_tokens, traffic.asked_tokens.total) == (20, 20)
        assert 4 <= traffic.uncached_tokens.total <= 40 - 2 * BLOCK_SIZE
        assert 1.0 <= traffic.window_s <= 60.0
        (seen,) = report.workers
        assert (seen.worker_id, seen.incarnation, seen.role) == ("decode-0", "decode-0/1", "decode")
        assert (seen.initial_role, seen.address) == ("decode", worker.address)
        assert (seen.num_blocks, seen.num_free_blocks, seen.block_size) == (1000, 900, BLOCK_SIZE)
        assert not seen.draining
        assert 0 < seen.ready_for_s < 60
        assert sum(seen.latency.values()) == 4


async def test_a_worker_cannot_make_the_report_invalid() -> None:
    most, most_tokens = (1 << 32) - 1, (1 << 64) - 1
    absurd, faithful = ScriptedWorker(), ScriptedWorker("decode-1")
    absurd.load = WorkerLoad(
        num_running=most, num_waiting=most, num_queued_tokens=most_tokens, num_free_blocks=most, num_blocks=most,
        prefill_tokens_per_s=3e38, decode_step_s=1e-40, decode_sequence_s=1e-40,
    )  # fmt: skip
    faithful.load = WorkerLoad(prefill_tokens_per_s=MAX_MEASURED, decode_step_s=0.25, decode_sequence_s=0.5)
    async with running_router(absurd, faithful) as router:
        first, second = sorted((await report_of(router)).workers, key=lambda each: each.worker_id)
    assert (first.num_running, first.num_waiting, first.num_queued_tokens) == (MAX_COUNT, MAX_COUNT, MAX_TOKENS)
    assert (first.num_blocks, first.num_free_blocks) == (MAX_COUNT, MAX_COUNT)
    assert (first.prefill_tokens_per_s, first.decode_step_s, first.decode_sequence_s) == (0.0, 0.0, 0.0)
    assert (second.prefill_tokens_per_s, second.decode_step_s, second.decode_sequence_s) == (MAX_MEASURED, 0.25, 0.5)


async def test_samples_leave_the_window() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, traffic_window_s=1) as router, asyncio.timeout(20):
        assert (await router.http.post("/v1/completions", json=BODY)).status_code == 200
        while (report := await report_of(router)).workers[0].latency or report.traffic.output_tokens.num:
            await asyncio.sleep(0.02)
        assert report.traffic.num_requests == 0
        assert report.traffic.window_s == pytest.approx(1.0)


async def test_a_prefill_worker_is_measured_by_the_prompts_that_it_computed() -> None:
    decode, prefill = ScriptedWorker(), ScriptedWorker("prefill-0", WORKER_ROLE_PREFILL)
    async with running_router(decode, prefill) as router:
        pinned = {"x-baton-prefill": "prefill-0"}
        assert (await router.http.post("/v1/completions", json=BODY, headers=pinned)).status_code == 200
        assert decode.commands[0].prefill.worker_id == "prefill-0"
        report = await report_of(router)
        assert {each.worker_id: sum(each.latency.values()) for each in report.workers} == {
            "decode-0": 1,
            "prefill-0": 1,
        }
        assert report.traffic.remote_tokens == report.traffic.uncached_tokens


async def test_a_refused_request_counts_as_load_and_a_lost_worker_does_not() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        worker.draining = True
        worker.news()
        await wait_workers(router.http, 1, "draining")
        assert (await router.http.post("/v1/completions", json=BODY)).status_code == 503
        report = await report_of(router)
        assert (report.traffic.num_requests, report.traffic.prompt_tokens.num) == (1, 0)
        assert [each.draining for each in report.workers] == [True]
        await worker.stop()
        await wait_workers(router.http, 1, "connecting")
        assert (await report_of(router)).workers == ()


async def test_the_report_of_pools_can_require_a_key(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    key = keys.add("a")
    async with running_router(api_keys_file=str(keys.path), protect_operations=True) as router:
        assert (await router.http.get("/pools")).status_code == 401
        assert (await router.http.get("/pools", headers=bearer(key))).status_code == 200
    async with running_router(api_keys_file=str(keys.path)) as router:
        assert (await router.http.get("/pools")).status_code == 200
