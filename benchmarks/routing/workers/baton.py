"""Simulated workers behind Baton's worker protocol: `python -m benchmarks.routing.workers.baton TOPOLOGY`."""

import sys

import uvloop

from baton.simulation.workers.app import simulated_workers
from baton.simulation.workers.worker_config import SimulatedWorkerConfig
from benchmarks.routing.topology import Topology
from benchmarks.routing.workers.control import announce, answer_until_end
from benchmarks.routing.workers.counts import WorkerCounts


async def main(topology: Topology) -> None:
    """Serve until standard input ends."""
    configs = [
        SimulatedWorkerConfig(worker_id=f"{role}-{index}", role=role, spec=topology.spec)
        for index, role in enumerate(topology.roles)
    ]
    async with simulated_workers(configs) as workers:
        announce([worker.address for worker in workers])
        await answer_until_end(lambda: [WorkerCounts.of(worker.core.counters) for worker in workers])


if __name__ == "__main__":
    uvloop.run(main(Topology.from_json(sys.argv[1])))
