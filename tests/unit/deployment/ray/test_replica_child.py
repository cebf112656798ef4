"""Ends of a replica's process, with a small real process."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from baton.deployment.ray.child import NotReady, ReplicaChild
from baton.process.child import ProcessSpec
from tests.process_ends import wait_gone
from tests.unit.deployment.recorder import child_spec


async def test_a_killed_process_leaves_no_stopped_child(tmp_path: Path) -> None:
    """The replica exits once `wait` has returned, so nothing can be killed later."""
    child = await ReplicaChild.start(child_spec(sys.executable, tmp_path, "leave_child"), 20)
    [grandchild] = psutil.Process(child.pid).children()
    grandchild.suspend()
    os.kill(child.pid, signal.SIGKILL)
    assert await child.wait() == "was killed by SIGKILL"
    await wait_gone(grandchild)
    await child.kill()


async def test_a_process_that_ends_in_order_leaves_no_child(tmp_path: Path) -> None:
    child = await ReplicaChild.start(child_spec(sys.executable, tmp_path, "leave_child"), 20)
    [grandchild] = psutil.Process(child.pid).children()
    await child.end(10)
    assert "ended well" in (tmp_path / "worker-0.log").read_text()
    await wait_gone(grandchild)


async def test_the_loss_of_another_node_ends_the_start(tmp_path: Path) -> None:
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    lost.set_result("node 1: block_size is '32' on rank 1 and '16' on rank 0")
    with pytest.raises(NotReady, match="cannot serve: node 1: block_size is '32' on rank 1"):
        await ReplicaChild.start(child_spec(sys.executable, tmp_path, "leave_child"), 20, lost=lost)


async def test_the_address_for_other_nodes_is_passed_on(tmp_path: Path) -> None:
    waiting: list[str] = []
    report = "import os, sys, time; os.write(int(sys.argv[1].split('=')[1]), b'%s'); time.sleep(60)"
    lines = '{"stage": "waiting", "address": "10.0.0.1:31000"}\\n{"stage": "ready", "address": "10.0.0.1:7000"}\\n'
    spec = ProcessSpec("worker-0", (sys.executable, "-c", report % lines), tmp_path / "log")
    child = await ReplicaChild.start(spec, 20, waiting.append)
    await child.kill()
    assert child.address == "10.0.0.1:7000"
    assert waiting == ["10.0.0.1:31000"]
