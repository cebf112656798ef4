"""Simulated workers in the test's own event loop, and clients of them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from baton.engine.sampling.params import SamplingParams
from baton.settings.names import Role
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.workers.app import simulated_workers
from baton.simulation.workers.worker import SimulatedWorker
from baton.simulation.workers.worker_config import SimulatedWorkerConfig
from tests.integration.decode_client import DecodeClient, decode_client
from tests.integration.worker_process import WorkerProcess

SPEC = WorkerSpec(
    block_size=4,
    num_blocks=1000,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    max_model_len=2000,
    step_s=0.002,
    sequence_s=0.0001,
    prefill_tokens_per_s=20_000,
    block_bytes=1000,
    link_bytes_per_s=1e8,
)


@dataclass(frozen=True)
class Served:
    """A simulated worker, and a channel to it."""

    simulated: SimulatedWorker
    remote: WorkerProcess


def sampling(max_tokens: int, **options: object) -> SamplingParams:
    """Return sampling options with `max_tokens`."""
    return SamplingParams(max_tokens=max_tokens, **options)  # type: ignore[arg-type]  # a test's own choice


async def until(condition: Callable[[], bool]) -> None:
    """Return once the condition holds. Raises TimeoutError if it never does."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def served(*roles: Role, spec: WorkerSpec = SPEC) -> AsyncIterator[list[Served]]:
    """Serve one worker per role; at the end none may have a request or a held block left."""
    configs = [
        SimulatedWorkerConfig(worker_id=f"{role}-{index}", role=role, spec=spec) for index, role in enumerate(roles)
    ]
    async with simulated_workers(configs) as workers, AsyncExitStack() as stack:
        remotes = []
        for worker in workers:
            remote = WorkerProcess(None, worker.address)  # type: ignore[arg-type]  # it has no process of its own
            stack.push_async_callback(remote.channel.close)
            remotes.append(Served(worker, remote))
        yield remotes
        for each in remotes:
            await each.remote.wait_idle()
            each.simulated.core.scheduler.check_integrity()


@asynccontextmanager
async def client_of(worker: Served) -> AsyncIterator[DecodeClient]:
    """Attach a client to the worker, like a router."""
    async with decode_client(worker.remote) as client:
        yield client
