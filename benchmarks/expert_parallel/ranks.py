"""Processes of ranks and their rendezvous."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace

import orjson

from baton.deployment.local.ports import free_ports
from benchmarks.expert_parallel.rank import Load, Measured, RankConfig

READY_TIMEOUT_S = 120.0


class Ranks:
    """The processes of one group."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes

    async def run(self, load: Load) -> list[Measured]:
        """Run the load on every rank, and wait for all."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(orjson.dumps(asdict(load)) + b"\n")
        return [Measured(**orjson.loads(await _line(process))) for process in self._processes]


@asynccontextmanager
async def group_of(config: RankConfig, num_ranks: int) -> AsyncIterator[Ranks]:
    """Start a group of this many ranks; fills in worker_id and rendezvous of the config."""
    [port] = free_ports("127.0.0.1", 1)
    rendezvous = await _start("baton.membership.rendezvous", f"--port={port}", "--log-level=warning")
    processes: list[Process] = []
    try:
        for number in range(num_ranks):
            told = replace(config, worker_id=f"rank-{number}", rendezvous=f"127.0.0.1:{port}", num_ranks=num_ranks)
            processes.append(await _start("benchmarks.expert_parallel.rank", orjson.dumps(asdict(told)).decode()))
        async with asyncio.timeout(READY_TIMEOUT_S):
            for process in processes:
                assert await _line(process) == b"ready\n"
        yield Ranks(processes)
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            await process.wait()
        rendezvous.terminate()
        await rendezvous.wait()


async def _start(module: str, *words: str) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-m", module, *words, stdin=PIPE, stdout=PIPE)


async def _line(process: Process) -> bytes:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"a rank ended with status {await process.wait()}")
    return line
