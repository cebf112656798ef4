"""The command `baton serve --ray`, started and interrupted as from a terminal."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import STDOUT, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil

from baton.deployment.local.ports import free_ports
from tests.integration.on_ray.ray_cluster import HOST, left_of

START_S, END_S = 180.0, 60.0
BODY = {"prompt": list(range(300, 420)), "max_tokens": 8, "temperature": 0, "ignore_eos": True}


class RayServeCommand:
    """A running command that serves."""

    def __init__(self, process: Process, url: str, printed: Path, logs: Path) -> None:
        self.url = url
        self.started = psutil.Process(process.pid).children(recursive=True)  # all processes that it started
        self._process = process
        self._printed = printed
        self._logs = logs

    async def answers(self) -> None:
        """Check that a request succeeds with a handover between workers."""
        async with httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False, verify=False) as client:
            answer = await client.post("/v1/completions", json=BODY)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-baton-prefill"].startswith("prefill-")
            assert int(answer.headers["x-baton-handed-over-tokens"]) > 0

    async def interrupt(self) -> None:
        """End it as Ctrl-C does, and check its exit status."""
        os.killpg(self._process.pid, signal.SIGINT)
        await asyncio.wait_for(self._process.wait(), END_S)
        text = self._printed.read_text()
        assert self._process.returncode == 0, text
        assert f"Serving baton-bundled at {self.url}" in text
        assert "pools        1 prefill + 1 decode" in text
        assert "KV cache     decode: " in text
        assert "Shutting down" in text
        assert "Traceback" not in text, text
        for log in self._logs.glob("*.log"):
            assert "Traceback" not in log.read_text(), log.read_text()


@asynccontextmanager
async def ray_serve_command(
    directory: Path, *flags: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[RayServeCommand]:
    """Run the command during the block; on exit no process of it may be left. `env`: its environment."""
    [port] = free_ports(HOST, 1)
    printed, logs = directory / "printed", directory / "logs"
    with printed.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "baton", "serve", "--ray", "--port", str(port), "--dtype", "float32"),
            *("--drain-timeout-s", "2", "--log-dir", str(logs), *flags),
            stdout=output,
            stderr=STDOUT,
            env=env,
            start_new_session=True,
        )
    started: list[psutil.Process] = []
    try:
        async with asyncio.timeout(START_S):
            while "Press Ctrl-C to stop" not in printed.read_text():
                assert process.returncode is None, printed.read_text()
                await asyncio.sleep(0.1)
        command = RayServeCommand(process, f"http://{HOST}:{port}", printed, logs)
        started = command.started
        yield command
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        left = await asyncio.to_thread(left_of, started, 20.0)
        for each in left:
            each.kill()
    assert left == []
