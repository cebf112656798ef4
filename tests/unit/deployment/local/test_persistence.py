"""Once a cluster has served, its processes are restarted without a limit."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from baton.deployment.local.events import Died, Event, Progressed, Started, Warned
from baton.deployment.local.supervisor import Deaths, RestartPolicy, Supervisor
from baton.process.child import ProcessSpec
from baton.process.progress import Ready
from tests.unit.deployment.recorder import Recorder, child_spec
from tests.unit.deployment.supervised_child import NUM_LIVES

POLICY = RestartPolicy(first_delay_s=0.01, max_delay_s=0.05)


class Supervised:
    """A process whose supervisor is persistent from its first readiness on."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.recorder = Recorder()
        self.supervisor = Supervisor(spec, POLICY, self._record)
        self.task = asyncio.create_task(self.supervisor.run())

    def _record(self, event: Event) -> None:
        if isinstance(event, Progressed) and isinstance(event.progress, Ready):
            self.supervisor.persist()
        self.recorder(event)

    async def wait_ready(self, num_times: int) -> None:
        """Return once the process has been ready this many times."""
        events = self.recorder.events
        async with asyncio.timeout(20):
            while sum(isinstance(each, Progressed) and isinstance(each.progress, Ready) for each in events) < num_times:
                assert not self.task.done(), self.task.exception()
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        """End the process; its supervisor must not have failed."""
        await self.supervisor.stop(timeout_s=10)
        await self.task


@pytest.mark.parametrize("mode", ["recover", "fail_later"])
async def test_any_number_of_failed_restarts_is_survived(tmp_path: Path, mode: str) -> None:
    run = Supervised(child_spec(sys.executable, tmp_path, mode, "worker-0", "--lives", str(tmp_path / "lives")))
    await run.wait_ready(1)
    os.kill(run.recorder.pids()[0], signal.SIGKILL)
    await run.wait_ready(2)
    await run.end()
    assert len(run.recorder.pids()) == NUM_LIVES + 1
    assert POLICY.max_early_deaths < NUM_LIVES
    deaths = [event for event in run.recorder.events if isinstance(event, Died)]
    assert [event.num_deaths for event in deaths] == list(range(1, NUM_LIVES + 1))
    [warned] = [event for event in run.recorder.events if isinstance(event, Warned)]
    assert "cannot serve" in warned.message or "3 times in a row before it was ready" in warned.message


@pytest.mark.slow
async def test_a_process_that_cannot_be_started_for_a_while_is_retried(tmp_path: Path) -> None:
    python, moved = tmp_path / "python", tmp_path / "moved"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    run = Supervised(child_spec(str(python), tmp_path, "serve"))
    await run.wait_ready(1)
    python.rename(moved)
    os.kill(run.recorder.pids()[0], signal.SIGKILL)
    await run.recorder.wait_for(lambda event: isinstance(event, Died) and "could not be started" in event.reason)
    moved.rename(python)
    await run.wait_ready(2)
    await run.end()


async def test_a_stop_before_the_next_start_starts_nothing(tmp_path: Path) -> None:
    recorder = Recorder()
    policy = RestartPolicy(first_delay_s=600, max_delay_s=600)
    supervisor = Supervisor(child_spec(sys.executable, tmp_path, "serve"), policy, recorder)
    run = asyncio.create_task(supervisor.run())
    await recorder.wait_for(lambda event: isinstance(event, Progressed) and isinstance(event.progress, Ready))
    supervisor.persist()
    os.kill(recorder.pids()[0], signal.SIGKILL)
    await recorder.wait_for(lambda event: isinstance(event, Died))
    await supervisor.stop(timeout_s=10)
    await run
    assert sum(isinstance(event, Started) for event in recorder.events) == 1


def test_out_of_memory_kills_back_off_although_the_process_serves_in_between() -> None:
    assert Deaths(num_short=0, num_oom=3).in_a_row == 3
    assert Deaths(num_short=5, num_oom=1).in_a_row == 5
    assert Deaths().in_a_row == 1
