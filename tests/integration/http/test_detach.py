"""`baton serve --detach`, `baton ps` and `baton stop` with a real server."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from baton.deployment.local.ports import free_ports
from tests.process_ends import wait_gone

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Return a function that runs `baton` with a state directory of its own; what it started ends with the test."""
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "baton", *words]
        return subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240)

    yield run
    run("stop", "--all", "--timeout-s", "0")


def servers(run: Run) -> list[dict[str, Any]]:
    """Return the servers that `baton ps` lists."""
    found: list[dict[str, Any]] = json.loads(run("ps", "--json").stdout)
    return found


@pytest.mark.slow
def test_a_detached_server_serves_until_it_is_stopped(run: Run, tmp_path: Path) -> None:
    [port] = free_ports("127.0.0.1", 1)
    started = run("serve", "--colocated=1", f"--port={port}", "--detach")
    assert started.returncode == 0, started.stderr
    [server] = servers(run)
    url = f"http://127.0.0.1:{port}"
    assert (server["name"], server["state"], server["url"], server["model"]) == (
        *(str(port), "ready", url),
        "baton-bundled",
    )
    assert started.stdout.startswith(f"Serving baton-bundled at {url} (process {server['pid']})\nThe log is {tmp_path}")
    assert f"Serving baton-bundled at {url}" in Path(server["log"]).read_text()
    assert {path.name for path in Path(server["log"]).parent.iterdir()} == {
        *("serve.log", "router.log", "both-0.log", "processes.json")
    }
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 4}, timeout=60)
    assert answer.status_code == 200, answer.text

    process = psutil.Process(server["pid"])
    family = [process, *process.children(recursive=True)]
    stopped = run("stop", "--port", str(port))
    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stdout.startswith(
        f"Stopped {port} (process {server['pid']}), which served baton-bundled at {url}, in"
    )
    asyncio.run(wait_gone(*family))
    assert servers(run) == []
    assert run("stop").stderr == "Error: no detached server runs; Ctrl-C or SIGTERM stops others\n"


@pytest.mark.slow
async def test_names_are_taken_while_a_server_runs_and_free_after_it_was_killed(run: Run, tmp_path: Path) -> None:
    [port] = free_ports("127.0.0.1", 1)
    options = ("--colocated=1", f"--port={port}", "--detach", "--name=one")
    assert run("serve", *options).returncode == 0
    again = run("serve", "--colocated=1", f"--port={port}", "--detach", "--name=one")
    assert (again.returncode, again.stderr) == (
        1,
        "Error: a server named one runs already; stop it with `baton stop one`\n",
    )
    other = run("serve", "--colocated=1", f"--port={port}", "--detach", "--name=other")
    assert other.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in other.stderr
    assert other.stderr.splitlines()[-1] == f"The log is {tmp_path / 'baton/servers' / 'other/logs/serve.log'}"
    [server] = servers(run)  # the other one has left no record

    process = psutil.Process(server["pid"])
    family = [process, *process.children(recursive=True)]
    process.send_signal(signal.SIGKILL)
    await wait_gone(*family)  # the workers end with it
    [killed] = servers(run)
    assert (killed["state"], killed["pid"]) == ("killed", None)
    refused = run("stop", "one")
    assert (refused.returncode, refused.stderr) == (
        1,
        f"Error: one does not run: it was killed. Its log is {killed['log']}\n",
    )
    assert servers(run) == []
    assert run("serve", *options).returncode == 0
    assert run("stop", "one").returncode == 0


def test_the_servers_own_error_is_shown(run: Run) -> None:
    done = run("serve", "/nowhere/model", "--detach")
    assert done.returncode == 1
    assert "Error: /nowhere/model is neither a directory" in done.stderr


@pytest.mark.slow
def test_a_shells_redirection_into_the_log_directory_is_not_bounded(run: Run, tmp_path: Path) -> None:
    """The shell's position in the file would stay where it is, so that the log would become a hole."""
    [port] = free_ports("127.0.0.1", 1)
    log = tmp_path / "serve.log"
    log.write_bytes(b"x" * (1 << 17))
    argv = [sys.executable, "-m", "baton", "serve", "--colocated=1", f"--port={port}", f"--log-dir={tmp_path}"]
    with log.open("r+b") as output:
        output.seek(0, os.SEEK_END)
        process = subprocess.Popen([*argv, "--max-log-bytes=64KiB"], stdout=output, stderr=output)
        try:
            while b"Serving" not in log.read_bytes():
                assert process.poll() is None
                time.sleep(0.2)
        finally:
            process.terminate()
            process.wait(60)
    assert log.read_bytes().startswith(b"x" * (1 << 17))
    assert not (tmp_path / "serve.log.1").exists()
