"""A request of a batch that ends each worker that runs it, and requests that are refused for long."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from baton.router.batches import run as run_module
from baton.router.batches.run import MAX_LOSSES
from baton.router.http.exchange import Exchange
from baton.router.openai.errors import WORKER_LOST
from tests.unit.router.batches.batch_client import ended, results, start
from tests.unit.router.batches.batch_rig import batch_rig
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.test_lost_requests import DEADLY, MortalWorker

NUM_LINES = 6


class SlowlyMortalWorker(MortalWorker):
    """A worker that returns only after requests have stopped to wait for it."""

    num_deaths = 0

    async def _die(self) -> None:
        self.num_deaths += 1
        await self.stop()
        await asyncio.sleep(0.5)
        await self.start()


def line(custom_id: str, **options: Any) -> dict[str, Any]:
    body = {"model": "bundled_model", "prompt": "a", "max_tokens": 3, **options}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


@pytest.mark.slow
async def test_a_deadly_request_ends_few_workers_and_no_other_request(tmp_path: Path) -> None:
    worker = SlowlyMortalWorker("decode-0")
    async with running_router(worker, failover_timeout_s=0.1, files_dir=str(tmp_path)) as router:
        single = await router.http.post("/v1/completions", json=DEADLY)
        assert (single.status_code, single.headers[WORKER_LOST]) == (503, "true")
        worker.num_deaths = 0
        lines = [line("deadly", **DEADLY), *(line(f"{number}", seed=number) for number in range(NUM_LINES))]
        batch = await ended(router.openai, await start(router.openai, lines, endpoint="/v1/completions"))
        assert batch.status == "completed"
        assert worker.num_deaths == MAX_LOSSES
        assert len(await results(router.openai, batch.output_file_id)) == NUM_LINES
        errors = await results(router.openai, batch.error_file_id)
        assert {name: each["response"]["status_code"] for name, each in errors.items()} == {"deadly": 503}


async def test_requests_that_lost_workers_twice_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MIN_BACKOFF_S", 0.01)
    running, beside = set[str](), dict[str, int]()

    async def serve(exchange: Exchange) -> None:
        name: str = json.loads(await exchange.read(0))["prompt"]
        running.add(name)
        await asyncio.sleep(0.05)
        beside[name] = len(running)
        is_deadly = "1" in running
        running.discard(name)
        await exchange.respond(503 if is_deadly else 200, b"{}", {WORKER_LOST: "true"} if is_deadly else None)

    async with batch_rig(tmp_path, serve) as rig:
        record = await rig.run(rig.create(NUM_LINES))
        assert (record.num_completed, record.num_failed) == (NUM_LINES - 1, 1)
        assert rig.results(record.error_file_id).keys() == {"line 1"}
        assert beside["1"] == 1


async def test_a_request_that_is_always_refused_does_not_delay_the_others(tmp_path: Path) -> None:
    async def serve(exchange: Exchange) -> None:
        if json.loads(await exchange.read(0))["prompt"] == "1":
            await exchange.respond(503, b"{}", {"retry-after": "1"})
        else:
            await exchange.respond(200, b"{}")

    async with batch_rig(tmp_path, serve) as rig:
        owned = rig.own(rig.create(200))
        run = run_module.BatchRun(owned, rig.parts)
        running = asyncio.create_task(run.run())
        async with asyncio.timeout(10):
            while rig.batches.find(rig.tenant, owned.record.id).record.num_completed < 199:
                await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.wait([running])
        owned.release()
