"""Real worker processes for tests."""

import re
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import grpc

from baton.deployment.local.cluster_plan import WORKER_COMMAND
from baton.process.child import ChildProcess, ProcessSpec
from baton.process.progress import Failed, Ready
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.grpc_options import CHANNEL_OPTIONS
from baton.settings.names import Role
from tests.integration.together import together

# Logged by gRPC itself for a call that is cancelled as it arrives, before any of our code runs.
CANCELLED_EARLY = re.compile(
    r'Traceback \(most recent call last\):\n  File "src/python/grpcio/[^\n]*_schedule_rpc_coro\n'
    r"asyncio\.exceptions\.CancelledError\n"
)


class WorkerProcess:
    """A started worker and a channel to it."""

    def __init__(self, child: ChildProcess, address: str) -> None:
        self.child = child
        self.address = address
        self.channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.worker = worker_pb2_grpc.WorkerStub(self.channel)

    async def describe(self) -> worker_pb2.WorkerDescription:
        """Return the worker's description."""
        return await self.worker.Describe(worker_pb2.DescribeRequest())

    async def peer(self) -> worker_pb2.PeerWorker:
        """Return the PeerWorker by which a plan names this worker."""
        description = await self.describe()
        return worker_pb2.PeerWorker(
            worker_id=description.worker_id, address=self.address, incarnation=description.incarnation
        )

    async def updates(self) -> AsyncIterator[worker_pb2.WorkerUpdate]:
        """Yield the worker's reports of load and cache."""
        call = self.worker.Watch(worker_pb2.WatchRequest(interval_ms=10))
        try:
            async for update in call:
                yield update
        finally:
            call.cancel()

    async def wait_idle(self) -> worker_pb2.WorkerLoad:
        """Wait until the worker has no request, no lease and only free blocks."""
        async for update in self.updates():
            load = update.load
            if load.num_running == load.num_waiting == 0 and load.num_free_blocks == load.num_blocks:
                return load
        raise AssertionError("the worker ended")


@asynccontextmanager
async def worker_process(role: Role, model: Path, directory: Path, *flags: str) -> AsyncIterator[WorkerProcess]:
    """Run a worker that serves `model`; on exit its log must be free of tracebacks."""
    name = f"{role}-{len(list(directory.glob('*.log')))}"
    log = directory / f"{name}.log"
    argv = [sys.executable, "-m", *WORKER_COMMAND, "--role", role, "--worker-id", name, "--model", str(model)]
    argv += ["--num-threads=1", "--kv-cache-memory-bytes=16MiB", *flags]
    child = await ChildProcess.start(ProcessSpec(name, tuple(argv), log, {"OMP_NUM_THREADS": "1"}))
    worker: WorkerProcess | None = None
    try:
        async for progress in child.progress():
            if isinstance(progress, Ready):
                worker = WorkerProcess(child, progress.address)
                break
            assert not isinstance(progress, Failed), progress
        assert worker is not None, f"{name} ended before it was ready: {log.read_text()}"
        yield worker
    finally:
        if worker is not None:
            await worker.channel.close()
        child.terminate()
        status = await child.wait()
        child.close()
    assert "Traceback" not in CANCELLED_EARLY.sub("", log.read_text()), log.read_text()
    assert status in (0, -9), f"{name} ended with {status}: {log.read_text()}"


def worker_processes(
    model: Path, directory: Path, *workers: tuple[Role, *tuple[str, ...]]
) -> AbstractAsyncContextManager[list[WorkerProcess]]:
    """Run several workers, given by role and flags; they start and end concurrently."""
    return together(*(worker_process(role, model, directory, *flags) for role, *flags in workers))
