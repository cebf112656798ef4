"""A server that `make serve` starts in a clone of the last commit."""

import asyncio
import os
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.server import free_port
from tests.integration.console.served_page import ServedCluster, worker_pids
from tests.integration.http.test_serve_start import read_until

ROOT = Path(__file__).parents[2]
needs_clone = [
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git repository"),
    pytest.mark.skipif(shutil.which("make") is None, reason="needs make"),
]


def clone(directory: Path) -> dict[str, str]:
    """Clone the repository's last commit, with this environment and its compiled modules in place of an installation.

    Return the environment variables with which Python imports the clone.
    """
    subprocess.run(["git", "clone", "--quiet", ROOT, directory], check=True)
    (directory / ".venv").symlink_to(sys.prefix)
    for path in (*ROOT.glob("*/native/*.so"), *ROOT.glob("*/*/native/*.so")):
        shutil.copy(path, directory / path.relative_to(ROOT))
    environment = {**os.environ, "PYTHONPATH": str(directory)}  # in front of the installed tree
    command = [sys.executable, "-c", "import baton.router; print(baton.router.__file__)"]
    found = subprocess.run(command, env=environment, cwd=directory, check=True, capture_output=True, text=True)
    assert found.stdout.startswith(str(directory))
    return environment


@asynccontextmanager
async def made_server(directory: Path, environment: dict[str, str]) -> AsyncIterator[ServedCluster]:
    """Run `make serve` in a clone."""
    port = free_port()
    command = ("make", "--assume-old=.venv/.base", "serve", f"PORT={port}")
    process = await asyncio.create_subprocess_exec(*command, cwd=directory, env=environment, stdout=PIPE, stderr=STDOUT)
    try:
        text = await read_until(process, "Press Ctrl-C to stop.")
        assert f"http://127.0.0.1:{port}/console" in text
        yield ServedCluster(f"http://127.0.0.1:{port}", worker_pids(text))
    finally:
        process.terminate()  # which make passes on
        await process.wait()
