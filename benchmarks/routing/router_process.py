"""Measured router process."""

import asyncio
import os
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from benchmarks.routing.workers.process import ROOT, ProcessFailed, tail


@dataclass(frozen=True, slots=True)
class RouterProcess:
    """Address and processes of the router."""

    port: int
    process: Process
    log: IO[bytes]

    def check(self) -> None:
        """Raise ProcessFailed if it has ended."""
        if self.process.returncode is not None:
            raise ProcessFailed(f"the router ended with status {self.process.returncode}:\n{tail(self.log)}")

    def cpu_s(self) -> float:
        """Return the CPU time of the process and its children since the start."""
        own = psutil.Process(self.process.pid)
        times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
        return float(sum(each.user + each.system for each in times))


@asynccontextmanager
async def started_router(
    python: Path, arguments: Sequence[str], environment: Mapping[str, str], port: int
) -> AsyncIterator[RouterProcess]:
    """Run `python -m ...` until the end of the block."""
    log = tempfile.TemporaryFile()  # noqa: SIM115  # the process writes it to its end
    process = await asyncio.create_subprocess_exec(
        str(python), "-m", *arguments, cwd=ROOT, stdin=DEVNULL, stdout=log, stderr=log,
        env={**os.environ, **environment},
    )  # fmt: skip
    children: list[psutil.Process] = []
    try:
        yield RouterProcess(port, process, log)
        if process.returncode is None:
            children = psutil.Process(process.pid).children(recursive=True)
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        for child in children:
            if child.is_running():
                child.kill()
        log.close()
