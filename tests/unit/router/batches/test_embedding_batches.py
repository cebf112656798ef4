"""Batches of embeddings, through the real client."""

import asyncio
from pathlib import Path

import pytest

from baton.protos import worker_pb2
from baton.router.batches import run
from baton.router.batches.runner import MAX_TENANT_RUNNING
from tests.unit.router.batches.batch_client import MODEL, chat_line, ended, results, start
from tests.unit.router.dispatch.embedding_worker import EmbeddingWorker
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

EMBEDDINGS = "/v1/embeddings"
LINE = {"custom_id": "1", "method": "POST", "url": EMBEDDINGS, "body": {"model": MODEL, "input": "a"}}


@pytest.mark.slow
async def test_batches_that_no_worker_can_run_hold_up_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without workers that make embeddings, those of embeddings wait, and lend their places."""
    monkeypatch.setattr(run, "STUCK_S", 0.1)
    prefiller = EmbeddingWorker()
    async with running_router(ScriptedWorker(), files_dir=str(tmp_path)) as router:
        waiting = [await start(router.openai, [LINE], endpoint=EMBEDDINGS) for _ in range(MAX_TENANT_RUNNING)]
        while {(await router.openai.batches.retrieve(each.id)).status for each in waiting} != {"in_progress"}:
            await asyncio.sleep(0.02)
        batch = await ended(router.openai, await start(router.openai, [chat_line("1")]))
        assert (batch.status, batch.request_counts and batch.request_counts.completed) == ("completed", 1)
        assert {(await router.openai.batches.retrieve(each.id)).status for each in waiting} == {"in_progress"}
    async with running_router(prefiller, ScriptedWorker(), files_dir=str(tmp_path)) as router:
        for each in waiting:
            assert (await ended(router.openai, each)).status == "completed"


async def test_requests_to_a_model_without_a_pooling_get_their_errors(tmp_path: Path) -> None:
    prefiller = ScriptedWorker("prefill-0", worker_pb2.WORKER_ROLE_PREFILL)
    async with running_router(prefiller, files_dir=str(tmp_path)) as router:
        batch = await ended(router.openai, await start(router.openai, [LINE], endpoint=EMBEDDINGS))
        assert batch.status == "completed"
        response = (await results(router.openai, batch.error_file_id))["1"]["response"]
        assert response["status_code"] == 400
        assert "does not make embeddings" in response["body"]["error"]["message"]
