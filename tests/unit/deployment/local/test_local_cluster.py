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

from baton.deployment.local.cluster import LocalCluster
from baton.deployment.local.events import ClusterReady, Event, GivenUp, Progressed, Started
from baton.deployment.local.ports import free_ports
from baton.deployment.local.process_states import STATES_FILE, StatesWriter
from baton.deployment.local.supervisor import GaveUp, RestartPolicy
from baton.process.progress import Ready
from baton.process.states import read_states
from tests.unit.deployment.recorder import Recorder, child_spec
from tests.unit.deployment.supervised_child import NUM_LIVES

POLICY = RestartPolicy(first_delay_s=0.01, max_delay_s=0.05)
SCRIPT = "tests.unit.deployment.cluster_script"
ROOT = Path(__file__).parents[4]
TIMEOUT_S = 20.0


class Run:
    """A cluster that runs in the test's event loop."""

    def __init__(self, tmp_path: Path, modes: list[str]) -> None:
        port = free_ports("127.0.0.1", 1)[0]
        workers = [
            child_spec(sys.executable, tmp_path, mode, f"worker-{index}", "--lives", str(tmp_path / f"lives-{index}"))
            for index, mode in enumerate(modes)
        ]
        names = [worker.name for worker in workers]
        router = child_spec(sys.executable, tmp_path, "serve", "router", "--port", str(port), "--workers", *names)
        self.recorder = Recorder()
        self.num_alive_when_given_up = 0
        self.stop, self.kill = asyncio.Event(), asyncio.Event()
        self.url = f"http://127.0.0.1:{port}"
        self.states = tmp_path / STATES_FILE
        states = StatesWriter(self.states, ["router", *names])
        cluster = LocalCluster([router, *workers], self.url, self._record, 20, POLICY, states=states)
        self.task = asyncio.create_task(cluster.run(self.stop, self.kill))

    def _record(self, event: Event) -> None:
        if isinstance(event, GivenUp):
            self.num_alive_when_given_up = self.num_alive()
        self.recorder(event)

    def pids_of(self, name: str) -> list[int]:
        return [event.pid for event in self.recorder.events if isinstance(event, Started) and event.name == name]

    def num_alive(self) -> int:
        return sum(psutil.pid_exists(pid) for pid in self.recorder.pids())


def is_ready(event: Event) -> TypeGuard[Progressed]:
    return isinstance(event, Progressed) and isinstance(event.progress, Ready)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def test_a_cluster_reports_readiness_and_leaves_no_process(tmp_path: Path) -> None:
    run = Run(tmp_path, ["serve", "serve"])
    ready = await run.recorder.wait_for(lambda event: isinstance(event, ClusterReady))
    assert isinstance(ready, ClusterReady)
    before = run.recorder.events[: run.recorder.events.index(ready)]
    assert {event.name for event in before if is_ready(event)} == {"router", "worker-0", "worker-1"}
    assert run.num_alive() == 3
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        router = (await client.get(run.url)).json()["router"]
    assert router["num_asked"] > 3, "ready before the router had both workers"
    run.stop.set()
    await run.task
    assert run.num_alive() == 0


async def test_a_shutdown_can_be_cut_short(tmp_path: Path) -> None:
    run = Run(tmp_path, ["stubborn"])

    await run.recorder.wait_for(lambda event: isinstance(event, ClusterReady))
    started_s = time.monotonic()
    run.stop.set()
    run.kill.set()
    await run.task
    assert time.monotonic() - started_s < 5
    assert run.num_alive() == 0


async def test_a_process_that_is_given_up_ends_the_cluster(tmp_path: Path) -> None:
    run = Run(tmp_path, ["serve", "fail"])
    with pytest.raises(GaveUp, match="worker-1 cannot serve: UnsupportedModel"):
        await run.task
    assert run.num_alive() == 0
    assert run.num_alive_when_given_up >= 2, "the reason is reported before the other processes end"
    [given_up] = [event for event in run.recorder.events if isinstance(event, GivenUp)]
    assert "worker-1 cannot serve: UnsupportedModel" in given_up.reason


@pytest.mark.slow
async def test_two_simultaneous_failing_restarts_end_nothing_else(tmp_path: Path) -> None:
    run = Run(tmp_path, ["recover", "fail_later", "serve"])
    await run.recorder.wait_for(lambda event: isinstance(event, ClusterReady))
    for name in ("worker-0", "worker-1"):
        os.kill(run.pids_of(name)[0], signal.SIGKILL)
    async with asyncio.timeout(TIMEOUT_S):
        while [is_ready(event) for event in run.recorder.events].count(True) < 4 + 2:
            assert not run.task.done()
            await asyncio.sleep(0.01)
    assert len(run.pids_of("router")) == len(run.pids_of("worker-2")) == 1
    assert all(is_alive(run.pids_of(name)[-1]) for name in ("router", "worker-0", "worker-1", "worker-2"))
    states = {state.name: state for state in read_states(run.states)}
    assert {name: state.state for name, state in states.items()} == dict.fromkeys(states, "ready")
    assert [states[name].num_restarts for name in ("worker-0", "worker-1", "worker-2")] == [NUM_LIVES, NUM_LIVES, 0]
    assert states["worker-1"].last_end == "UnsupportedModel: FooForCausalLM"
    run.stop.set()
    await run.task
    assert run.num_alive() == 0


async def test_stop_right_after_the_start_leaves_no_process(tmp_path: Path) -> None:
    run = Run(tmp_path, ["serve", "stubborn"])
    run.stop.set()
    await run.task
    assert run.num_alive() == 0


async def test_a_dead_worker_is_replaced_while_the_rest_continues(tmp_path: Path) -> None:
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
        os.kill(pids[0], signal.SIGSTOP)
        assert all(is_alive(pid) for pid in pids)
        supervisor.kill()
    deadline_s = time.monotonic() + TIMEOUT_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline_s, "a child outlives its killed supervisor"
        time.sleep(0.05)
