"""A router with simulated workers, and requests for pins."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from baton.settings.names import Role
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.workers.app import simulated_workers
from baton.simulation.workers.worker import SimulatedWorker
from baton.simulation.workers.worker_config import SimulatedWorkerConfig
from tests.unit.router.api_keys import bearer
from tests.unit.router.rigs.running_router import DEADLINE_S, RunningRouter, running_router, wait_workers

SPEC = WorkerSpec(
    block_size=16, num_blocks=101, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=2000, step_s=0.001,
    sequence_s=0.0001, prefill_tokens_per_s=100_000, block_bytes=1000,
)  # fmt: skip
PINS = "/v1/cache/pins"
PREFIX = list(range(300, 400))  # 6 full blocks


@asynccontextmanager
async def serving(*roles: Role, **options: Any) -> AsyncIterator[tuple[RunningRouter, list[SimulatedWorker]]]:
    configs = [
        SimulatedWorkerConfig(worker_id=f"{role}-{number}", role=role, model="bundled_model", spec=SPEC)
        for number, role in enumerate(roles)
    ]
    async with simulated_workers(configs) as workers:
        addresses = tuple(worker.address for worker in workers)
        async with running_router(workers=addresses, **options) as router:
            await wait_workers(router.http, len(workers))
            yield router, workers


def held(worker: SimulatedWorker) -> int:
    worker.core.scheduler.check_integrity()
    return worker.core.blocks.prefix_pins.figures.num_blocks


def headers_of(key: str, plan: str | None) -> dict[str, str]:
    return {**(bearer(key) if key else {}), **({"x-baton-plan": plan} if plan else {})}


async def pin(router: RunningRouter, key: str = "", plan: str | None = None, **fields: Any) -> httpx.Response:
    return await router.http.post(PINS, json={"prompt": PREFIX, **fields}, headers=headers_of(key, plan))


async def pins(router: RunningRouter, key: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await router.http.get(PINS, headers=bearer(key) if key else None)).json()["data"]
    return found


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():
            await asyncio.sleep(0.005)


async def complete(router: RunningRouter, prompt: list[int], key: str = "", plan: str | None = None) -> int:
    """Return the number of cached tokens of a completion."""
    body = {"prompt": prompt, "max_tokens": 4}
    answer = await router.http.post("/v1/completions", json=body, headers=headers_of(key, plan))
    assert answer.status_code == 200, answer.text
    cached: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached
