"""Workers with one rank on each of two nodes: loopback addresses of this machine."""

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from baton.deployment.local.cluster_plan import WORKER_COMMAND
from baton.deployment.local.ports import free_ports
from baton.process.child import ChildProcess, ProcessSpec
from baton.settings.names import Role
from tests.integration.together import together
from tests.integration.worker_process import WorkerProcess, worker_process

HOSTS = ("127.0.0.1", "127.0.0.2")
SMALL = ("--max-num-batched-tokens=48", "--max-num-seqs=16", "--dtype=float32", "--kv-shards=2")


@dataclass(frozen=True, slots=True)
class Node:
    """The process of a worker on its second node."""

    child: ChildProcess
    log: Path

    async def ended(self) -> int:
        """Wait for its end, and return its status."""
        return await self.child.wait()


def flags_of_node(number: int, port: int, *flags: str) -> tuple[str, ...]:
    """Return the flags of one node of a worker with a rank on each of two."""
    nodes = ("--tensor-parallel-size=2", "--nnodes=2", f"--node-rank={number}", f"--master-port={port}")
    return (*nodes, f"--host={HOSTS[number]}", *flags)


@asynccontextmanager
async def second_node(role: Role, model: Path, directory: Path, port: int, *flags: str) -> AsyncIterator[Node]:
    """Run the second node of a worker; on exit its log must be free of tracebacks."""
    log = directory / f"{role}-{port}.node"
    argv = (sys.executable, "-m", *WORKER_COMMAND, f"--role={role}", f"--worker-id={role}-{port}")
    argv += (f"--model={model}", "--num-threads=1", "--kv-cache-memory-bytes=16MiB", *flags_of_node(1, port, *flags))
    child = await ChildProcess.start(ProcessSpec(f"{role}-node", argv, log, {"OMP_NUM_THREADS": "1"}))
    try:
        yield Node(child, log)
    finally:
        child.terminate()
        await child.wait()
        child.close()
    assert "Traceback" not in log.read_text(), log.read_text()


@asynccontextmanager
async def worker_on_two_nodes(
    role: Role, model: Path, directory: Path, *flags: str
) -> AsyncIterator[tuple[WorkerProcess, Node]]:
    """Run a worker of two ranks, the second one on another node, which must end in order if the first does."""
    [port] = free_ports(HOSTS[0], 1)
    async with (
        second_node(role, model, directory, port, *SMALL, *flags) as node,
        worker_process(role, model, directory, *flags_of_node(0, port, *SMALL, *flags)) as worker,
    ):
        yield worker, node


def on_two_nodes(
    model: Path, directory: Path, *workers: tuple[Role, *tuple[str, ...]]
) -> AbstractAsyncContextManager[list[tuple[WorkerProcess, Node]]]:
    """Run several workers, given by role and flags; they start and end concurrently."""
    return together(*(worker_on_two_nodes(role, model, directory, *flags) for role, *flags in workers))
