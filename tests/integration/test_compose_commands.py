"""The commands and health checks of examples/compose, run here as processes instead of containers."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from baton.cli.options.model_source import BUNDLED
from baton.deployment.local.ports import free_ports
from tests.redis_server import redis_server

FILE = Path(__file__).parents[2] / "examples" / "compose" / "compose.yaml"
SERVICES: Mapping[str, Mapping[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"]
TIMEOUT_S = 120.0
POLL_S = 0.2


def placed(words: list[str], replaced: Mapping[str, str]) -> list[str]:
    """Return a command with what a container would have replaced by what is here."""
    words = [word.replace("$$", "$") for word in words]
    for old, new in replaced.items():
        words = [word.replace(old, new) for word in words]
    return words


@asynccontextmanager
async def service(name: str, replaced: Mapping[str, str], directory: Path) -> AsyncIterator[None]:
    """Run a service until its health check succeeds; on exit, SIGTERM must end it in order."""
    described = SERVICES[name]
    own = {"MODEL_NAME": "tiny", "ROLE": name} | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with (directory / f"{name}.log").open("ab") as log:
        argv = placed(described["command"], replaced)
        process = await asyncio.create_subprocess_exec(*argv, env={**os.environ, **own}, stdout=log, stderr=log)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                check = placed(described["healthcheck"]["test"][1:], replaced)
                while process.returncode is None:
                    probe = await asyncio.create_subprocess_exec(*check, env={**os.environ, **own}, stderr=log)
                    if await probe.wait() == 0:
                        break
                    await asyncio.sleep(POLL_S)
            assert process.returncode is None, (directory / f"{name}.log").read_text()
            yield
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                await process.wait()
        assert process.returncode == 0, (directory / f"{name}.log").read_text()


@pytest.mark.slow
async def test_the_services_find_each_other_and_serve(tmp_path: Path) -> None:
    ports = free_ports("127.0.0.1", 3)
    async with redis_server(tmp_path) as redis:
        common = {"/model": str(BUNDLED), "redis://redis:6379/0": redis.url, "0.0.0.0": "127.0.0.1"}
        common |= {"$(hostname -i)": "127.0.0.1", "socket.gethostbyname(socket.gethostname())": "'127.0.0.1'"}
        workers = [{**common, "7000": str(port)} for port in ports[:2]]
        async with (
            service("prefill", workers[0], tmp_path),
            service("decode", workers[1], tmp_path),
            service("router", {**common, "8000": str(ports[2])}, tmp_path),
        ):
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports[2]}", timeout=TIMEOUT_S) as client:
                answer = await client.post("/v1/completions", json={"prompt": "a b c " * 100, "max_tokens": 4})
                assert answer.status_code == 200, answer.text
                workers_view = json.dumps((await client.get("/workers")).json())
            assert '"prefill"' in workers_view
            assert '"decode"' in workers_view
