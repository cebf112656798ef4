"""Restarts stop if they do not help, and out-of-memory kills are named as such."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from baton.deployment.local.events import Died, Event, Progressed
from baton.deployment.local.supervisor import Deaths, GaveUp, Life, RestartPolicy, Supervisor
from baton.process import host_memory
from baton.process.progress import Ready
from tests.marks import slow_case
from tests.unit.deployment.recorder import Recorder, child_spec

ROOT = Path(__file__).parents[4]
LIMIT_BYTES = 256 << 20
V1, V2 = host_memory.CGROUPS / "memory", host_memory.CGROUPS
POLICY = RestartPolicy(first_delay_s=0.01, max_delay_s=0.05, max_deaths=4)


def death(served_s: float | None = 1.0, *, is_oom: bool = False) -> Life:
    return Life("ended with status 1", served_s, None, is_oom)


def after(*lives: Life) -> Deaths:
    deaths = Deaths()
    for life in lives:
        deaths = deaths.with_one(life, RestartPolicy())
    return deaths


def test_short_lives_in_a_row_are_counted() -> None:
    policy = RestartPolicy()
    assert not policy.is_exceeded(after(*[death()] * 7))
    assert policy.is_exceeded(after(*[death()] * 8))
    assert not policy.is_exceeded(after(*[death()] * 7, death(served_s=3600.0), *[death()] * 7))
    assert not policy.is_exceeded(after(*[death(served_s=61.0)] * 100)), "it serves between its deaths"
    assert policy.is_exceeded(after(*[death(served_s=None)] * 3))
    assert policy.is_exceeded(after(*[death(is_oom=True)] * 3))
    assert not policy.is_exceeded(after(*[death(is_oom=True), death()] * 3))
    assert policy.is_exceeded(after(*[death(served_s=120.0, is_oom=True)] * 3)), "requests fill the memory each time"
    assert not policy.is_exceeded(after(*[death(served_s=3600.0, is_oom=True)] * 100))
    assert [policy.delay_s(num) for num in (1, 2, 3, 7, 8)] == [0.5, 1, 2, 30, 30]


async def test_a_process_that_is_ready_and_dies_each_time_is_given_up(tmp_path: Path) -> None:
    recorder = Recorder()
    spec = child_spec(sys.executable, tmp_path, "crash")
    with pytest.raises(GaveUp) as raised:
        await Supervisor(spec, POLICY, recorder).run()
    text = str(raised.value)
    assert "worker-0 died 4 times in a row, each time after less than 60 s of service" in text
    assert "the last time it was killed by SIGABRT" in text
    assert str(spec.log_path) in text
    assert len(recorder.pids()) == 4


def test_processes_killed_by_other_programs_are_restarted_forever() -> None:
    policy = RestartPolicy()
    killed = Life("was killed by SIGKILL", 5.0, None, is_oom=False, is_outside=True)
    deaths = after(*[killed] * 100)
    assert not policy.is_exceeded(deaths)
    assert policy.delay_s(deaths.in_a_row) == policy.max_delay_s
    assert policy.is_exceeded(after(*[killed] * 100, *[death()] * 8))


@pytest.mark.parametrize("number", [signal.SIGKILL, slow_case(signal.SIGTERM)])
async def test_a_cluster_survives_kills_every_few_seconds(tmp_path: Path, number: signal.Signals) -> None:
    recorder = Recorder()
    supervisor = Supervisor(child_spec(sys.executable, tmp_path, "serve"), POLICY, recorder)
    run = asyncio.create_task(supervisor.run())
    for num_kills in range(POLICY.max_deaths + 1):
        while sum(map(is_ready, recorder.events)) <= num_kills:
            assert not run.done()
            await asyncio.sleep(0.01)
        os.kill(recorder.pids()[-1], number)
    await supervisor.stop(timeout_s=10)
    await run


async def test_kills_of_a_rank_count_for_its_worker(tmp_path: Path) -> None:
    spec = child_spec(sys.executable, tmp_path, "lose_rank")
    with pytest.raises(GaveUp, match=r"rank 1 of this worker was killed by the kernel .* 3 times in a row\."):
        await Supervisor(spec, POLICY, Recorder()).run()


async def test_an_out_of_memory_kill_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("oom_kill 4\n")
    monkeypatch.setattr(
        host_memory.OomKills, "around", classmethod(lambda cls, pid: cls(vmstat, int(vmstat.read_text().split()[1])))
    )
    recorder = Recorder()
    supervisor = Supervisor(child_spec(sys.executable, tmp_path, "serve"), POLICY, recorder)
    run = asyncio.create_task(supervisor.run())
    await recorder.wait_for(is_ready)
    os.kill(recorder.pids()[0], signal.SIGKILL)
    first = await recorder.wait_for(lambda event: isinstance(event, Died))
    assert isinstance(first, Died)
    assert first.reason == "was killed by SIGKILL", "the count has not grown"
    await recorder.wait_for(lambda event: is_ready(event) and len(recorder.pids()) == 2)
    vmstat.write_text("oom_kill 5\n")
    os.kill(recorder.pids()[1], signal.SIGKILL)
    await recorder.wait_for(lambda event: isinstance(event, Died) and "(OOM killer)" in event.reason)
    await supervisor.stop(timeout_s=10)
    await run


def is_ready(event: Event) -> bool:
    return isinstance(event, Progressed) and isinstance(event.progress, Ready)


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """Create a control group with little memory, of the mounted version."""
    is_v1 = V1.is_dir()
    group = (V1 if is_v1 else V2) / f"baton-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(LIMIT_BYTES))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"control groups cannot be made here: {error}")
    yield group
    group.rmdir()


def test_a_process_killed_by_the_kernel_for_memory_is_named_and_given_up(tmp_path: Path, small_cgroup: Path) -> None:
    """The process takes twice the memory of its control group."""
    enter = f'echo $$ > {small_cgroup}/cgroup.procs && exec "$@"'
    script = (sys.executable, "-m", "tests.unit.deployment.supervise_script", str(tmp_path), "hungry")
    done = subprocess.run(
        ("sh", "-c", enter, "sh", *script), cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.count("Died(name='worker-0', reason='was killed by the kernel because memory ran out") == 2
    last = "worker-0 was killed by the kernel because memory ran out (OOM killer) 3 times in a row. Give the KV caches"
    assert last in done.stdout
