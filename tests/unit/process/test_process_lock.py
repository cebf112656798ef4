"""Locks of real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from baton.process.process_lock import ProcessLock, lock_holder

HOLDER = """
import subprocess, sys
from pathlib import Path
from baton.process.process_lock import ProcessLock
lock = ProcessLock(Path(sys.argv[1]))
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=sys.stdin)
print("held", flush=True)
sys.stdin.readline()
"""


def test_the_kernel_names_the_holder_until_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert lock_holder(path) is None
    argv = [sys.executable, "-c", HOLDER, str(path)]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder.stdin, holder.stdout:
        assert holder.stdout.readline() == b"held\n"
        assert lock_holder(path) == holder.pid
        with pytest.raises(BlockingIOError):
            ProcessLock(path)
        assert lock_holder(path) == holder.pid
        holder.kill()
        holder.wait(30)
        assert lock_holder(path) is None  # its child, which still runs, has not inherited the lock
    lock = ProcessLock(path)
    lock.release()
    assert path.stat().st_mode & 0o777 == 0o600
