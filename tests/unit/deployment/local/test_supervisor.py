"""Supervision of real processes."""

import asyncio
import os
import shutil
import signal
import stat
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from baton.deployment.local.events import Died, Event, Progressed, Started, Warned
from baton.deployment.local.supervisor import GaveUp, RestartPolicy, Supervisor
from baton.process.progress import Ready
from tests.process_ends import wait_gone
from tests.unit.deployment.recorder import Recorder, child_spec

POLICY = RestartPolicy(first_delay_s=0.01, max_delay_s=0.05)


def is_ready(event: Event) -> bool:
    return isinstance(event, Progressed) and isinstance(event.progress, Ready)


def is_second_start(event: Event) -> bool:
    return isinstance(event, Started) and event.life == 2


def test_delays_double_up_to_a_bound() -> None:
    policy = RestartPolicy(first_delay_s=0.5, max_delay_s=3)
    assert [policy.delay_s(num) for num in (1, 2, 3, 4, 1000)] == [0.5, 1, 2, 3, 3]


async def test_a_process_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    recorder = Recorder()
    supervisor = Supervisor(child_spec(sys.executable, tmp_path, "serve"), POLICY, recorder)
    run = asyncio.create_task(supervisor.run())
    ready = await recorder.wait_for(is_ready)
    assert isinstance(ready, Progressed)
    assert isinstance(ready.progress, Ready)
    assert ready.progress.address == "127.0.0.1:1"
    await supervisor.stop(timeout_s=10)
    await run
    assert "ended well" in (tmp_path / "worker-0.log").read_text()
    assert not psutil.pid_exists(recorder.pids()[0])
    assert not any(isinstance(event, Died) for event in recorder.events)


async def test_a_killed_process_is_restarted(tmp_path: Path) -> None:
    recorder = Recorder()
    supervisor = Supervisor(child_spec(sys.executable, tmp_path, "serve"), POLICY, recorder)
    run = asyncio.create_task(supervisor.run())
    await recorder.wait_for(is_ready)
    os.kill(recorder.pids()[0], signal.SIGKILL)
    await recorder.wait_for(is_second_start)
    died = next(event for event in recorder.events if isinstance(event, Died))
    assert died.reason == "was killed by SIGKILL"
    await supervisor.stop(timeout_s=10)
    await run
    assert len(recorder.pids()) == 2
    assert not any(psutil.pid_exists(pid) for pid in recorder.pids())


async def test_early_deaths_below_the_bound_are_survived(tmp_path: Path) -> None:
    recorder = Recorder()
    spec = child_spec(sys.executable, tmp_path, "flaky", "worker-0", "--lives", str(tmp_path / "lives"))
    supervisor = Supervisor(spec, POLICY, recorder)
    run = asyncio.create_task(supervisor.run())
    await recorder.wait_for(is_ready)
    assert len(recorder.pids()) == 3
    await supervisor.stop(timeout_s=10)
    await run


async def test_giving_up_reports_the_last_lines_of_the_log(tmp_path: Path) -> None:
    recorder = Recorder()
    spec = child_spec(sys.executable, tmp_path, "die", "worker-0", "--lives", str(tmp_path / "lives"))
    with pytest.raises(GaveUp) as raised:
        await Supervisor(spec, POLICY, recorder).run()
    text = str(raised.value)
    assert "worker-0 died 3 times in a row before it was ready; it ended with status 1" in text
    assert "no luck in life 3" in text
    assert str(spec.log_path) in text
    assert len(recorder.pids()) == 3


async def test_a_process_that_reports_why_it_cannot_serve_is_not_restarted(tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(GaveUp, match="worker-0 cannot serve: UnsupportedModel: FooForCausalLM"):
        await Supervisor(child_spec(sys.executable, tmp_path, "fail"), POLICY, recorder).run()
    assert len(recorder.pids()) == 1


async def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    recorder = Recorder()
    supervisor = Supervisor(child_spec(sys.executable, tmp_path, "stubborn"), POLICY, recorder)
    run = asyncio.create_task(supervisor.run())
    await recorder.wait_for(is_ready)
    await supervisor.stop(timeout_s=0.3)
    await run
    assert not psutil.pid_exists(recorder.pids()[0])


async def test_a_cancelled_supervisor_leaves_no_process(tmp_path: Path) -> None:
    recorder = Recorder()
    supervisor = Supervisor(child_spec(sys.executable, tmp_path, "stubborn"), POLICY, recorder)
    run = asyncio.create_task(supervisor.run())
    await recorder.wait_for(is_ready)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not psutil.pid_exists(recorder.pids()[0])


async def test_children_of_a_killed_process_end_before_its_restart(tmp_path: Path) -> None:
    """The child holds the progress pipe, and is stopped: it could not end itself."""
    recorder = Recorder()
    supervisor = Supervisor(child_spec(sys.executable, tmp_path, "leave_child"), POLICY, recorder)
    run = asyncio.create_task(supervisor.run())
    await recorder.wait_for(is_ready)
    [grandchild] = psutil.Process(recorder.pids()[0]).children()
    grandchild.suspend()
    os.kill(recorder.pids()[0], signal.SIGKILL)
    await recorder.wait_for(is_second_start)
    await wait_gone(grandchild)
    supervisor.kill()
    await run


async def test_a_process_that_ends_in_order_leaves_no_child(tmp_path: Path) -> None:
    recorder = Recorder()
    supervisor = Supervisor(child_spec(sys.executable, tmp_path, "leave_child"), POLICY, recorder)
    run = asyncio.create_task(supervisor.run())
    await recorder.wait_for(is_ready)
    [grandchild] = psutil.Process(recorder.pids()[0]).children()
    await supervisor.stop(timeout_s=10)
    await run
    assert "ended well" in (tmp_path / "worker-0.log").read_text()
    await wait_gone(grandchild)


async def test_a_grandchild_that_holds_the_pipe_does_not_delay_a_restart(tmp_path: Path) -> None:
    """It has its own session, so that it survives its parent's process group."""
    recorder = Recorder()
    supervisor = Supervisor(child_spec(sys.executable, tmp_path, "leave_session"), POLICY, recorder)
    run = asyncio.create_task(supervisor.run())
    await recorder.wait_for(is_ready)
    [grandchild] = psutil.Process(recorder.pids()[0]).children()
    os.kill(recorder.pids()[0], signal.SIGKILL)
    await recorder.wait_for(is_second_start)
    grandchildren = [grandchild, *psutil.Process(recorder.pids()[1]).children()]
    supervisor.kill()
    await run
    assert not psutil.pid_exists(recorder.pids()[1])
    assert grandchild.is_running()
    for process in grandchildren:
        process.kill()


async def test_a_stop_before_run_starts_nothing(tmp_path: Path) -> None:
    recorder = Recorder()
    supervisor = Supervisor(child_spec(sys.executable, tmp_path, "serve"), POLICY, recorder)
    await supervisor.stop(timeout_s=1)
    await supervisor.run()
    assert recorder.events == []


async def test_a_command_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    supervisor = Supervisor(child_spec("/nowhere/python", tmp_path, "serve"), POLICY, Recorder())
    open_before = psutil.Process().num_fds()
    with pytest.raises(FileNotFoundError):
        await supervisor.run()
    assert psutil.Process().num_fds() == open_before


async def test_a_lost_log_directory_does_not_prevent_restarts_once_a_cluster_has_served(tmp_path: Path) -> None:
    recorder = Recorder()
    logs = tmp_path / "logs"
    logs.mkdir()
    supervisor = Supervisor(child_spec(sys.executable, logs, "serve"), POLICY, recorder)
    supervisor.persist()
    run = asyncio.create_task(supervisor.run())
    await recorder.wait_for(is_ready)
    shutil.rmtree(logs)
    os.kill(recorder.pids()[0], signal.SIGKILL)
    await recorder.wait_for(is_second_start)
    assert any(isinstance(event, Warned) and "logs here" in event.message for event in recorder.events)
    await supervisor.stop(timeout_s=10)
    await run
    assert not any(psutil.pid_exists(pid) for pid in recorder.pids())


async def test_a_removed_directory_of_sockets_is_made_again_before_the_next_start(tmp_path: Path) -> None:
    recorder = Recorder()
    sockets = tmp_path / "sockets"
    spec = replace(child_spec(sys.executable, tmp_path, "serve"), private_dir=sockets)
    supervisor = Supervisor(spec, POLICY, recorder)
    run = asyncio.create_task(supervisor.run())
    await recorder.wait_for(is_ready)
    sockets.rmdir()
    os.kill(recorder.pids()[0], signal.SIGKILL)
    await recorder.wait_for(is_second_start)
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    await supervisor.stop(timeout_s=10)
    await run
