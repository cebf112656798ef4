"""A process of simulated workers, each with its own server and port.

Once they serve, the process writes one line of JSON to standard output: `addresses`, in the form of a router's
--workers, and each worker's id, role, address and incarnation.
"""

import asyncio
import json
import logging
import signal
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import click

from baton.doctor.known_peers import KnownPeers
from baton.process.entry import plain_errors, process_flags, run_process, take_process_flags
from baton.process.log_format import LogSource
from baton.process.progress import ProgressReporter
from baton.rpc.peers import Channels
from baton.rpc.tracing.base import Tracer
from baton.rpc.tracing.factory import open_tracer
from baton.settings.config_file import load
from baton.settings.flags import click_options
from baton.settings.options import options_of
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.workers.config import SimulationConfig
from baton.simulation.workers.worker import SimulatedWorker
from baton.simulation.workers.worker_config import SimulatedWorkerConfig
from baton.worker.registration import member_of, registered

logger = logging.getLogger("baton.simulation.workers")  # also when it is run as __main__


@asynccontextmanager
async def simulated_workers(
    configs: Iterable[SimulatedWorkerConfig], tracer: Tracer | None = None
) -> AsyncIterator[list[SimulatedWorker]]:
    """Serve workers in the caller's event loop during a `with` block. `tracer`: exports their spans."""
    channels, peers = Channels(), KnownPeers(None)
    workers: list[SimulatedWorker] = []
    try:
        for config in configs:
            workers.append(SimulatedWorker(config, channels, peers, tracer))
            await workers[-1].start()
        yield workers
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))
        await channels.close()


async def run(config: SimulationConfig) -> None:
    """Serve until SIGTERM or SIGINT, then drain."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    tracer = open_tracer(config.otlp_traces_endpoint, "baton-worker", "simulation")
    async with simulated_workers(config.workers(), tracer) as workers, _registered(config, workers):
        click.echo(json.dumps(_summary(workers)))
        ProgressReporter(config.progress_fd).ready(address=workers[0].address, num_workers=len(workers))
        logger.info("%d simulated workers serve, the first at %s", len(workers), workers[0].address)
        await stopping.wait()
        await _drain(workers, config.drain_timeout_s)
    if tracer is not None:
        await tracer.close()


@asynccontextmanager
async def _registered(config: SimulationConfig, workers: Sequence[SimulatedWorker]) -> AsyncIterator[None]:
    """Register the workers, if there is a registry; they leave it concurrently, as Redis may be unresponsive."""
    leaving = asyncio.Event()

    async def register(worker: SimulatedWorker) -> None:
        member = member_of(worker.description, worker.config.role)
        async with registered(config.registry, member, config.lease_s, worker.drain) as lapsed:
            ended = asyncio.ensure_future(leaving.wait())
            await asyncio.wait((ended, lapsed), return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if lapsed.done():
                logger.error("%s lost its registration: %s", member.worker_id, lapsed.exception())

    registering = [asyncio.create_task(register(worker)) for worker in workers if config.registry is not None]
    try:
        yield
    finally:
        leaving.set()
        await asyncio.gather(*registering)


async def _drain(workers: Sequence[SimulatedWorker], timeout_s: float) -> None:
    """Return once no request is left, or after the timeout, once the remaining requests are handed off."""
    num_requests = sum(await asyncio.gather(*(worker.drain.run(timeout_s, final=True) for worker in workers)))
    if num_requests:
        logger.warning("%d requests did not finish within the drain timeout", num_requests)


def _summary(workers: Sequence[SimulatedWorker]) -> dict[str, object]:
    described = [
        {
            "worker_id": worker.config.worker_id,
            "role": worker.config.role,
            "address": worker.address,
            "incarnation": worker.description.incarnation,
        }
        for worker in workers
    ]
    return {"addresses": ",".join(worker.address for worker in workers), "workers": described}


@click.command(name="simulate")
@click_options(options_of(SimulationConfig))
@click_options(options_of(WorkerSpec))
@process_flags
@plain_errors
def main(**flags: object) -> None:
    """Run simulated workers for routers: no model, given speeds, tokens that are a function of the prompt."""
    process = take_process_flags(flags)
    config = load(SimulationConfig, process.config_file, flags)
    run_process(process.of(LogSource("simulation"), config.progress_fd), lambda: run(config))
