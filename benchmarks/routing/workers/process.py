"""Client of a process of simulated workers."""

import asyncio
import os
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import orjson

from benchmarks.routing.workers.counts import WorkerCounts

ROOT = Path(__file__).parents[3]
START_TIMEOUT_S = 60.0


class ProcessFailed(Exception):
    """The process failed; the text has the end of its log."""


class WorkerProcess:
    """Handle of a running process; does not own it."""

    def __init__(self, process: Process, addresses: Sequence[str]) -> None:
        self.addresses = list(addresses)
        self._process = process

    async def counts(self) -> list[WorkerCounts]:
        """Return each worker's counts since the start."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return [WorkerCounts(**each) for each in orjson.loads(await _read_line(self._process))]


@asynccontextmanager
async def started_workers(
    python: Path, module: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> AsyncIterator[WorkerProcess]:
    """Run `python -m module` until the end of the block. Raises ProcessFailed if it does not start serving."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            str(python), "-m", f"benchmarks.routing.workers.{module}", *arguments, stdin=PIPE, stdout=PIPE, stderr=log,
            limit=1 << 20, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )  # fmt: skip
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                line = await _read_line(process)
            if not line:
                raise ProcessFailed(f"{module} ended with status {await process.wait()}:\n{tail(log)}")
            yield WorkerProcess(process, orjson.loads(line)["addresses"])
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def tail(log: IO[bytes]) -> str:
    """Return the end of a process's log."""
    log.seek(0)
    return log.read().decode(errors="replace")[-4000:]


async def _read_line(process: Process) -> bytes:
    """Return the next line of JSON, empty at the end. Other output is skipped."""
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if line.startswith((b"{", b"[")):
            return line
    return b""
