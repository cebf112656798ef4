"""A router and simulated workers in this process, all of which export traces to one collector."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from baton.rpc.tracing.factory import open_tracer
from baton.settings.names import Role
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.workers.app import simulated_workers
from baton.simulation.workers.worker import SimulatedWorker
from baton.simulation.workers.worker_config import SimulatedWorkerConfig
from tests.unit.router.rigs.running_router import RunningRouter, running_router, wait_workers

SPEC = replace(WorkerSpec(), step_s=0.001, prefill_tokens_per_s=100_000.0)
PROMPT = "There was a quiet harbour, and the lamp by the door was blue. " * 20


@dataclass(frozen=True)
class TracedCluster:
    """The router and its workers."""

    router: RunningRouter
    workers: list[SimulatedWorker]


@asynccontextmanager
async def traced_cluster(
    endpoint: str | None, *roles: Role, spec: WorkerSpec = SPEC, **options: object
) -> AsyncIterator[TracedCluster]:
    """Serve one worker a role. `endpoint`: of the collector; None: nothing is exported."""
    configs = [
        SimulatedWorkerConfig(worker_id=f"{role}-{index}", role=role, model="bundled_model", spec=spec)
        for index, role in enumerate(roles)
    ]
    tracer = open_tracer(endpoint, "baton-worker", "test")
    async with simulated_workers(configs, tracer) as workers:
        given = {"otlp_traces_endpoint": endpoint, "local_prefill_below": 16, **options}
        async with running_router(workers=tuple(each.address for each in workers), **given) as router:
            await wait_workers(router.http, len(workers))
            yield TracedCluster(router, workers)
    if tracer is not None:
        await tracer.close()
