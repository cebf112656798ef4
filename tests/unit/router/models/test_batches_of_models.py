"""Batches of a router with several models."""

from pathlib import Path

import pytest

from baton.router.batches import run as run_module
from baton.router.batches import runner as runner_module
from tests.marks import slow_case
from tests.unit.router.batches.batch_client import chat_line, ended, results, start
from tests.unit.router.models.two_models import FIRST, OTHER, other_worker, two_models
from tests.unit.router.rigs.running_router import until, wait_workers
from tests.unit.router.rigs.scripted_worker import ScriptedWorker


async def test_each_request_of_a_batch_goes_to_its_model(tmp_path: Path) -> None:
    first, other = ScriptedWorker(), other_worker()
    async with two_models(tmp_path, first, other, files_dir=str(tmp_path / "files")) as router:
        models = {"a": FIRST, "b": OTHER, "c": OTHER, "d": "nothing", "e": None}
        lines = [chat_line(custom_id, model=model) for custom_id, model in models.items()]
        batch = await ended(router.openai, await start(router.openai, lines))
        output = await results(router.openai, batch.output_file_id)
        assert {name: each["response"]["body"]["model"] for name, each in output.items()} == {
            name: models[name] for name in ("a", "b", "c")
        }
        assert (len(first.commands), len(other.commands)) == (1, 2)
        errors = await results(router.openai, batch.error_file_id)
        assert {name: each["response"]["status_code"] for name, each in errors.items()} == {"d": 404, "e": 400}
        metrics = (await router.http.get("/metrics")).text
        assert 'baton:batch_requests_total{model_name="",status="200"} 3.0' in metrics


async def test_a_batch_without_workers_does_not_keep_one_of_another_model_waiting(tmp_path: Path) -> None:
    first, other = ScriptedWorker(), other_worker()
    async with two_models(tmp_path, first, other, files_dir=str(tmp_path / "files")) as router:
        await first.stop()
        await wait_workers(router.http, 1)
        blocked = await start(router.openai, [chat_line("a", model=FIRST)])
        batch = await ended(router.openai, await start(router.openai, [chat_line("b", model=OTHER)]))
        assert list(await results(router.openai, batch.output_file_id)) == ["b"]
        assert not first.commands
        await first.start()
        await until(lambda: bool(first.commands))
        assert (await ended(router.openai, blocked)).status == "completed"


async def test_requests_without_a_model_get_their_errors_while_no_worker_is_ready(tmp_path: Path) -> None:
    first, other = ScriptedWorker(), other_worker()
    async with two_models(tmp_path, first, other, files_dir=str(tmp_path / "files")) as router:
        await first.stop()
        await wait_workers(router.http, 1)
        lines = [chat_line("a", model="nothing"), chat_line("b", model=None), chat_line("c", model=OTHER)]
        batch = await ended(router.openai, await start(router.openai, lines))
        assert list(await results(router.openai, batch.output_file_id)) == ["c"]
        errors = await results(router.openai, batch.error_file_id)
        assert {name: each["response"]["status_code"] for name, each in errors.items()} == {"a": 404, "b": 400}


@pytest.mark.parametrize(("most", "most_of_tenant"), [slow_case(8, 2), slow_case(2, 8)])
async def test_batches_without_workers_give_up_their_places_until_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, most_of_tenant: int
) -> None:
    monkeypatch.setattr(run_module, "STUCK_S", 0.5)
    monkeypatch.setattr(runner_module, "MAX_RUNNING", most)
    monkeypatch.setattr(runner_module, "MAX_TENANT_RUNNING", most_of_tenant)
    first, other = ScriptedWorker(), other_worker()
    async with two_models(tmp_path, first, other, files_dir=str(tmp_path / "files")) as router:
        await first.stop()
        await wait_workers(router.http, 1)
        blocked = [await start(router.openai, [chat_line(f"{number}", model=FIRST)]) for number in range(5)]
        for _ in range(2):  # the second one finds the others parked
            batch = await ended(router.openai, await start(router.openai, [chat_line("b", model=OTHER)]))
            assert list(await results(router.openai, batch.output_file_id)) == ["b"]
        cancelled = await router.openai.batches.cancel(blocked.pop().id)
        assert (await ended(router.openai, cancelled)).status == "cancelled"
        assert not first.commands
        await first.start()
        assert [(await ended(router.openai, each)).status for each in blocked] == ["completed"] * 4
        assert len(first.commands) == 4
