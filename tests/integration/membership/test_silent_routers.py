"""A router process that is stopped or hangs is replaced; a busy one is not."""

import asyncio
import os
import signal
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import psutil
import pytest

from tests.integration.completion_load import complete, completion_load
from tests.integration.membership.test_router_processes import ROLES, SPEC, client_of, group, processes
from tests.integration.router_process import RouterProcess, wait_workers
from tests.process_ends import wait_gone

NUM_CONNECTIONS = 30
# Blocks the event loop as a bug might.
STALL_ON_SIGNAL = "import signal, time\nsignal.signal(signal.SIGUSR1, lambda *_: time.sleep(3600))\n"
BUSY_TIMEOUT_S = 3.0


async def assert_new_connections_succeed(router: RouterProcess) -> None:
    for _ in range(NUM_CONNECTIONS):
        async with router.client() as client:
            assert (await client.get("/health")).status_code == httpx.codes.OK


async def assert_is_replaced(router: RouterProcess, stack: AsyncExitStack, silent: psutil.Process) -> None:
    """Check that a silent process 0 is ended, and that new connections succeed before and after its replacement."""
    await wait_gone(silent)
    await assert_new_connections_succeed(router)
    again = await client_of(router, 0, stack)
    await wait_workers(again, len(ROLES))
    await complete(again, 0)
    await assert_new_connections_succeed(router)
    assert "router-0: was killed because it sent no heartbeat for over 1 s" in router.log()
    body = (await again.get("/workers")).json()
    restarts = {each["name"]: each["restarts"] for each in body["processes"]}
    assert restarts == {"router-0": 1, "router-1": 0}
    text = (await again.get("/metrics")).text
    assert text.count('baton:process_restarts_total{name="router-0"} 1.0') == 1


async def test_a_stopped_process_is_replaced(tmp_path: Path) -> None:
    async with group(tmp_path, SPEC, "--heartbeat-timeout-s=1") as router, AsyncExitStack() as stack:
        first, second = await processes(router)
        os.kill(first.pid, signal.SIGSTOP)
        await assert_is_replaced(router, stack, first)
        assert second in await processes(router)


@pytest.mark.slow
async def test_a_process_whose_event_loop_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(STALL_ON_SIGNAL)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    async with group(tmp_path, SPEC, "--heartbeat-timeout-s=1") as router, AsyncExitStack() as stack:
        first, second = await processes(router)
        os.kill(first.pid, signal.SIGUSR1)
        await assert_is_replaced(router, stack, first)
        assert second in await processes(router)
        assert "most recent call first" in router.log(), "its stacks say where it stood"


@pytest.mark.slow
async def test_busy_processes_are_not_replaced(tmp_path: Path) -> None:
    async with group(tmp_path, SPEC, f"--heartbeat-timeout-s={BUSY_TIMEOUT_S}") as router:
        before = await processes(router)
        burn = (sys.executable, "-c", "while True: pass")
        burners = [await asyncio.create_subprocess_exec(*burn) for _ in range(2 * (os.cpu_count() or 1))]
        try:
            async with AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(router.client()) for _ in range(8)]
                async with completion_load(*clients) as load:
                    end_s = time.monotonic() + 1.5 * BUSY_TIMEOUT_S
                    while time.monotonic() < end_s:
                        await load.more(1)
        finally:
            for burner in burners:
                burner.kill()
                await burner.wait()
        assert await processes(router) == before
    assert "was killed" not in router.log()
