"""Faults of processes that `baton serve` supervises and restarts itself."""

import asyncio
import os
import random
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from baton.deployment.local.ports import free_ports
from tests.faults.row import Row

WAIT_S = 120.0
HEARTBEAT_TIMEOUT_S = 2.0
NUM_KILLS = 4  # of starts in a row; a cluster that was never ready would not survive as many
NUM_CONNECTIONS = 20
FLAGS = ("--prefill=1", "--decode=1", "--router-processes=2")
BODY = {"prompt": [300, 301, 302], "max_tokens": 2, "temperature": 0, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class ServedCluster:
    """A `baton serve` that has been ready."""

    process: Process
    url: str
    console: Path  # file with its output

    async def wait_printed(self, text: str, num_times: int = 1) -> None:
        """Wait until the console shows the text `num_times`. Raises AssertionError if the cluster ends first."""
        async with asyncio.timeout(WAIT_S):
            while (printed := self.console.read_text()).count(text) < num_times:
                assert self.process.returncode is None, printed
                await asyncio.sleep(0.05)

    async def view(self) -> dict[str, Any]:
        """Return a router's /workers over a new connection. Raises httpx.HTTPError."""
        async with httpx.AsyncClient(base_url=self.url, timeout=WAIT_S, trust_env=False, verify=False) as client:
            return dict((await client.get("/workers")).raise_for_status().json())

    async def pids(self) -> dict[str, int]:
        """Return the process ids of all supervised processes that run, by name."""
        return {each["name"]: each["pid"] for each in (await self.view())["processes"] if each["pid"]}

    async def complete(self) -> int:
        """Request a completion over a new connection and return its status."""
        async with httpx.AsyncClient(base_url=self.url, timeout=WAIT_S, trust_env=False, verify=False) as client:
            return (await client.post("/v1/completions", json=BODY)).status_code

    async def wait_whole(self) -> None:
        """Wait until every process and every worker is ready. Raises AssertionError if the cluster ends first."""
        async with asyncio.timeout(WAIT_S):
            while not await self._is_whole():
                assert self.process.returncode is None, self.console.read_text()
                await asyncio.sleep(0.05)

    async def _is_whole(self) -> bool:
        try:
            view = await self.view()
        except httpx.HTTPError:
            return False
        parts = (*view["processes"], *view["workers"])
        return bool(view["workers"]) and all(part["state"] == "ready" for part in parts)


@asynccontextmanager
async def served_cluster(directory: Path, *flags: str) -> AsyncIterator[ServedCluster]:
    """Start `baton serve FLAGS` with the bundled model and wait until it is ready; logs go into the directory."""
    [port] = free_ports("127.0.0.1", 1)
    console = directory / "console.log"
    with console.open("wb") as stdout:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-u", "-m", "baton", "serve", f"--port={port}", f"--log-dir={directory}"),
            *(f"--heartbeat-timeout-s={HEARTBEAT_TIMEOUT_S}", "--dtype=float32", *flags),
            stdout=stdout,
            stderr=stdout,
        )
    cluster = ServedCluster(process, f"http://127.0.0.1:{port}", console)
    try:
        await cluster.wait_printed("Ready after")
        yield cluster
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


SupervisedFault = Callable[[ServedCluster, random.Random], Awaitable[None]]


async def stopped_router(cluster: ServedCluster, rng: random.Random) -> None:
    """Stop a router process; from its replacement on, no connection may be lost."""
    pids = await cluster.pids()
    victim = psutil.Process(pids[rng.choice(sorted(name for name in pids if name.startswith("router-")))])
    victim.send_signal(signal.SIGSTOP)
    await asyncio.to_thread(victim.wait, WAIT_S)
    statuses = await asyncio.gather(*(cluster.complete() for _ in range(NUM_CONNECTIONS)))
    assert set(statuses) == {httpx.codes.OK}, statuses
    await cluster.wait_whole()


async def kills_during_starts(cluster: ServedCluster, rng: random.Random) -> None:
    """Kill a worker, and several of its replacements while they start; then it recovers without other restarts."""
    before = await cluster.pids()
    name = rng.choice(sorted(name for name in before if not name.startswith("router")))
    pid = before[name]
    for _ in range(1 + NUM_KILLS):
        os.kill(pid, signal.SIGKILL)
        pid = await _next_pid(cluster, name, pid)
    await cluster.wait_whole()
    after = await cluster.pids()
    assert {each for each in before if before[each] != after[each]} == {name}


async def _next_pid(cluster: ServedCluster, name: str, old: int) -> int:
    async with asyncio.timeout(WAIT_S):
        while (pid := (await cluster.pids()).get(name, old)) == old:
            assert cluster.process.returncode is None, cluster.console.read_text()
            await asyncio.sleep(0.02)
        return pid


async def run_supervised(fault: SupervisedFault, row: Row, tries: int, seed: int) -> None:
    """Inject a fault `tries` times into a new cluster; after each, a request must succeed."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="baton-chaos-") as directory:
        async with served_cluster(Path(directory), *FLAGS) as cluster:
            for _ in range(tries):
                row.tries += 1
                try:
                    await fault(cluster, rng)
                    status = await cluster.complete()
                    assert status == httpx.codes.OK, f"a completion afterwards: {status}"
                except (AssertionError, TimeoutError, httpx.HTTPError) as error:
                    row.failed += 1
                    row.notes.append(repr(error))


SUPERVISED_FAULTS: tuple[SupervisedFault, ...] = (stopped_router, kills_during_starts)
