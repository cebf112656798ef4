"""A real Ray on this machine with its own files and ports; applications are deployed by the `serve` command."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import yaml

from baton.deployment.local.ports import free_ports

HOST = "127.0.0.1"
COMMANDS = Path(sys.executable).parent
START_TIMEOUT_S = 90.0
END_TIMEOUT_S = 30.0
NUM_CPUS = 32  # logical CPUs, independent of the machine's
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # no other node could take over requests
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "50",  # otherwise Serve kills its starting proxy on a busy machine
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # every node is at 127.0.0.1
    "RAY_worker_niceness": "0",  # by default 15: on a busy machine workers would hardly run
}


class RayNode:
    """One node, across restarts."""

    def __init__(self, log: Path, env: dict[str, str], *flags: str) -> None:
        """`flags`: passed to `ray start`."""
        self._log = log
        self._env = env
        self._flags = flags
        self._process: Process | None = None

    async def start(self) -> None:
        """Start the node and wait until Ray reports that it runs."""
        with self._log.open("wb") as output:
            command = (COMMANDS / "ray", "start", "--block", *self._flags)
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, stdout=output, stderr=STDOUT, env=self._env
            )
        async with asyncio.timeout(START_TIMEOUT_S):
            while "Ray runtime started" not in self._log.read_text():
                assert self._process.returncode is None, self._log.read_text()
                await asyncio.sleep(0.1)

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    def processes(self) -> list[psutil.Process]:
        """Return all processes on the node, including ours."""
        if self._process is None or not self.is_running:
            return []
        return psutil.Process(self._process.pid).children(recursive=True)

    async def kill(self) -> None:
        """Kill the node and all processes on it, as a crash of the machine does."""
        processes, process = self.processes(), self._process
        assert process is not None
        process.kill()
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        await process.wait()
        assert await asyncio.to_thread(left_of, processes, END_TIMEOUT_S) == []

    async def end(self) -> None:
        """End the node; processes that do not end in time are killed."""
        processes, process = self.processes(), self._process
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_TIMEOUT_S)
        if process.returncode is None:
            process.kill()
            await process.wait()
        for each in await asyncio.to_thread(left_of, processes, END_TIMEOUT_S):
            with suppress(psutil.NoSuchProcess):
                each.kill()


class RayCluster:
    """A Ray cluster of a head node and the nodes that join it."""

    def __init__(
        self, directory: Path, host: str = HOST, env: Mapping[str, str] | None = None, flags: Sequence[str] = ()
    ) -> None:
        """`host`: the head's address; `env`: overrides our environment for all nodes and commands; `flags`: of the
        head.
        """
        self._directory = directory
        self._host = host
        self._port, client, agent = free_ports(host, 3)
        token = directory / "token"
        token.write_text("5" * 64)
        self.env = {**os.environ, **SETTINGS, **(env or {}), "RAY_AUTH_TOKEN_PATH": str(token)}
        ports = (f"--port={self._port}", f"--ray-client-server-port={client}")
        self.head = self._node("head", host, agent, "--head", *ports, "--include-dashboard=false", *flags)
        self._nodes = [self.head]

    def _node(self, name: str, host: str, agent: int, *flags: str) -> RayNode:
        return RayNode(
            self._directory / f"{name}.log",
            self.env,
            *(f"--node-ip-address={host}", f"--dashboard-agent-listen-port={agent}", *flags),
            *("--min-worker-port=0", "--max-worker-port=0", f"--temp-dir={self._directory / name[0]}"),
            *("--object-store-memory=100000000", f"--num-cpus={NUM_CPUS}"),
        )

    async def join(self, host: str, *flags: str) -> RayNode:
        """Start another node at this address."""
        [agent] = free_ports(host, 1)
        node = self._node(f"{len(self._nodes)}-node", host, agent, f"--address={self.address}", *flags)
        self._nodes.append(node)
        await node.start()
        return node

    async def restart_head(self) -> None:
        """Restart the head."""
        # Ray refuses to start a head at its previous address while processes of joined nodes still refer to it.
        (self._directory / "h" / "ray_current_cluster").unlink()
        await self.head.start()

    async def end(self) -> None:
        """End all nodes, the head last."""
        for node in reversed(self._nodes):
            await node.end()

    @property
    def address(self) -> str:
        """Address of the head."""
        return f"{self._host}:{self._port}"

    def processes(self) -> list[psutil.Process]:
        """Return all processes on the nodes, including ours."""
        return [process for node in self._nodes for process in node.processes()]

    def worker(self, worker_id: str) -> psutil.Process:
        """Return the process of one of our workers; its parent is the replica."""
        [found] = [each for each in self.processes() if f"--worker-id={worker_id}" in command_line(each)]
        return found

    async def deploy(self, config: dict[str, Any]) -> None:
        """Deploy a config file with Serve, which must accept it."""
        file = self._directory / "serve.yaml"
        file.write_text(yaml.safe_dump(config))
        log = self._directory / "deploy.log"
        with log.open("ab") as output:
            command = (COMMANDS / "serve", "run", "--non-blocking", "--address", self.address, file)
            process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=STDOUT, env=self.env)
        async with asyncio.timeout(START_TIMEOUT_S):
            assert await process.wait() == 0, log.read_text()

    def logs(self) -> str:
        """Return the logs of Serve and our processes, for failure messages."""
        files = [*self._directory.rglob("logs/serve/*.log"), *self._directory.rglob("logs/worker-*.err")]
        texts = [file.read_text(errors="replace")[-3000:] for file in files]
        return "\n".join(f"== {file.name}\n{text}" for file, text in zip(files, texts, strict=True) if text)


def command_line(process: psutil.Process) -> list[str]:
    """Return the command line of a process; empty if it has ended."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def left_of(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Return the processes that still run after `timeout_s`."""
    return psutil.wait_procs(processes, timeout=timeout_s)[1]


@asynccontextmanager
async def ray_cluster(host: str = HOST, env: Mapping[str, str] | None = None) -> AsyncIterator[RayCluster]:
    """Run a RayCluster; on exit none of its processes may be left."""
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as name:  # Ray needs short socket paths
        cluster = RayCluster(Path(name), host, env)
        try:
            await cluster.head.start()
            yield cluster
        finally:
            await cluster.end()
