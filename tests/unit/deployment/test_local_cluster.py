"""A whole cluster of small processes."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TypeGuard

import httpx
import psutil
import pytest

from baton.deployment.events import ClusterReady, Event, Progressed, Started
from baton.deployment.local import LocalCluster
from baton.deployment.ports import free_ports
from baton.deployment.supervisor import GaveUp, RestartPolicy
from baton.rpc.progress import Ready
from tests.unit.deployment.recorder import Recorder, child_spec

POLICY = RestartPolicy(first_delay_s=0.01, max_delay_s=0.05)
SCRIPT = "tests.unit.deployment.cluster_script"
ROOT = Path(__file__).parents[3]
TIMEOUT_S = 20.0


class Run:
    """A cluster that runs in the test's event loop."""

    def __init__(self, tmp_path: Path, modes: list[str]) -> None:
        port = free_ports("127.0.0.1", 1)[0]
        workers = [child_spec(sys.executable, tmp_path, mode, f"worker-{index}") for index, mode in enumerate(modes)]
        names = [worker.name for worker in workers]
        router = child_spec(sys.executable, tmp_path, "serve", "router", "--port", str(port), "--workers", *names)
        self.recorder = Recorder()
        self.stop, self.kill = asyncio.Event(), asyncio.Event()
        self.url = f"http://127.0.0.1:{port}"
        cluster = LocalCluster([router, *workers], self.url, self.recorder, drain_timeout_s=20, policy=POLICY)
        self.task = asyncio.create_task(cluster.run(self.stop, self.kill))

    def num_alive(self) -> int:
        return sum(psutil.pid_exists(pid) for pid in self.recorder.pids())


def is_ready(event: Event) -> TypeGuard[Progressed]:
    return isinstance(event, Progressed) and isinstance(event.progress, Ready)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def test_it_says_when_it_is_ready_and_leaves_no_process(tmp_path: Path) -> None:
    run = Run(tmp_path, ["serve", "serve"])
    ready = await run.recorder.wait_for(lambda event: isinstance(event, ClusterReady))
    assert isinstance(ready, ClusterReady)
    before = run.recorder.events[: run.recorder.events.index(ready)]
    assert {event.name for event in before if is_ready(event)} == {"router", "worker-0", "worker-1"}
    assert run.num_alive() == 3
    async with httpx.AsyncClient(trust_env=False) as client:
        router = (await client.get(run.url)).json()["router"]
    assert router["num_asked"] > 3, "ready before the router had both workers"
    run.stop.set()
    await run.task
    assert run.num_alive() == 0


async def test_the_end_can_be_cut_short(tmp_path: Path) -> None:
    run = Run(tmp_path, ["stubborn"])

    await run.recorder.wait_for(lambda event: isinstance(event, ClusterReady))
    started_s = time.monotonic()
    run.stop.set()
    run.kill.set()
    await run.task
    assert time.monotonic() - started_s < 5
    assert run.num_alive() == 0


async def test_one_that_gives_up_ends_all(tmp_path: Path) -> None:
    run = Run(tmp_path, ["serve", "fail"])
    with pytest.raises(GaveUp, match="worker-1 cannot serve: UnsupportedModel"):
        await run.task
    assert run.num_alive() == 0


async def test_stop_right_after_the_start_leaves_no_process(tmp_path: Path) -> None:
    run = Run(tmp_path, ["serve", "stubborn"])
    run.stop.set()
    await run.task
    assert run.num_alive() == 0


async def test_a_dead_worker_is_replaced_while_the_rest_runs_on(tmp_path: Path) -> None:
    run = Run(tmp_path, ["serve"])
    started = await run.recorder.wait_for(lambda event: isinstance(event, Started) and event.name == "worker-0")
    await run.recorder.wait_for(lambda event: isinstance(event, ClusterReady))
    assert isinstance(started, Started)
    os.kill(started.pid, signal.SIGKILL)
    again = await run.recorder.wait_for(lambda event: isinstance(event, Started) and event.life == 2)
    assert isinstance(again, Started)
    assert again.name == "worker-0"
    run.stop.set()
    await run.task
    assert run.num_alive() == 0


def test_children_do_not_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    port = str(free_ports("127.0.0.1", 1)[0])
    command = [sys.executable, "-m", SCRIPT, str(tmp_path), port, "serve", "stubborn"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as supervisor:
        assert supervisor.stdout is not None
        pids = []
        num_ready = 0
        for line in supervisor.stdout:
            if match := re.search(r"^Started.*pid=(\d+)", line):
                pids.append(int(match[1]))
            num_ready += line.startswith("Progressed") and "Ready(" in line
            if num_ready == 3:
                break
        assert len(pids) == 3
        assert all(is_alive(pid) for pid in pids)
        supervisor.kill()
    deadline_s = time.monotonic() + TIMEOUT_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline_s, "a child outlives its killed supervisor"
        time.sleep(0.05)
