"""A supervised process without heartbeats is killed and restarted; a slow supervisor kills nothing."""

import asyncio
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil

from baton.deployment.local.events import Died, Event, Progressed, Started
from baton.deployment.local.supervisor import HeartbeatWatch, RestartPolicy, Supervisor
from baton.process.progress import HEARTBEAT_S, Ready
from tests.unit.deployment.recorder import Recorder, child_spec

POLICY = RestartPolicy(first_delay_s=0.01, max_delay_s=0.05)
TIMEOUT_S = 4 * HEARTBEAT_S


def is_ready(event: Event) -> bool:
    return isinstance(event, Progressed) and isinstance(event.progress, Ready)


def is_second_start(event: Event) -> bool:
    return isinstance(event, Started) and event.life == 2


def is_killed_for_silence(event: Event) -> bool:
    return isinstance(event, Died) and "sent no heartbeat for over 1 s" in event.reason


async def test_a_stopped_process_is_replaced(tmp_path: Path) -> None:
    recorder = Recorder()
    spec = replace(child_spec(sys.executable, tmp_path, "beat"), heartbeat_timeout_s=TIMEOUT_S)
    supervisor = Supervisor(spec, POLICY, recorder)
    run = asyncio.create_task(supervisor.run())
    await recorder.wait_for(is_ready)
    os.kill(recorder.pids()[0], signal.SIGSTOP)
    await recorder.wait_for(is_killed_for_silence)
    await recorder.wait_for(is_second_start)
    assert not psutil.pid_exists(recorder.pids()[0])
    await supervisor.stop(timeout_s=10)
    await run


async def test_a_process_that_hangs_writes_its_stacks_and_is_replaced(tmp_path: Path) -> None:
    recorder = Recorder()
    spec = child_spec(sys.executable, tmp_path, "stall", "worker-0", "--lives", str(tmp_path / "lives"))
    supervisor = Supervisor(replace(spec, heartbeat_timeout_s=TIMEOUT_S), POLICY, recorder)
    run = asyncio.create_task(supervisor.run())
    await recorder.wait_for(is_killed_for_silence)
    await recorder.wait_for(is_second_start)
    await supervisor.stop(timeout_s=10)
    await run
    assert "most recent call first" in (tmp_path / "worker-0.log").read_text()


async def test_without_heartbeats_or_a_limit_nothing_is_killed(tmp_path: Path) -> None:
    watches = HeartbeatWatch(0), HeartbeatWatch(HEARTBEAT_S)
    watches[0].note()  # the one process is never watched; the other has not sent a heartbeat yet
    waits = [asyncio.create_task(watch.wait_silence()) for watch in watches]
    await asyncio.wait(waits, timeout=3 * HEARTBEAT_S)
    assert not any(wait.done() for wait in waits)
    for wait in waits:
        wait.cancel()


async def test_a_supervisor_that_did_not_run_finds_no_process_silent() -> None:
    watch = HeartbeatWatch(TIMEOUT_S)
    watch.note()
    silence = asyncio.create_task(watch.wait_silence())
    await asyncio.sleep(0.01)  # let the task begin to wait
    time.sleep(1.2 * TIMEOUT_S)  # noqa: ASYNC251  # the machine sleeps, with all processes
    await asyncio.sleep(0.01)
    assert not silence.done()
    silence.cancel()
