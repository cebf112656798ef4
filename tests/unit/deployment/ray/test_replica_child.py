"""Ends of a replica's process, with a small real process."""

import os
import signal
import sys
from pathlib import Path

import psutil

from baton.deployment.ray.child import ReplicaChild
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
