"""Kill of a process group whose leader has ended, with real groups."""

import subprocess
import sys

import psutil
import pytest

from baton.process.child import kill_leaderless_group

LEADER = """
import os, signal, sys
if os.fork() == 0:
    print(os.getpid(), flush=True)
    signal.pause()
sys.stdin.read()
"""


def test_a_group_ends_with_its_leader_and_its_id_with_a_new_leader_is_spared() -> None:
    command = (sys.executable, "-c", LEADER)
    leader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdin is not None
    assert leader.stdout is not None
    with leader.stdin, leader.stdout:
        member = psutil.Process(int(leader.stdout.readline()))
        member.suspend()
        kill_leaderless_group(leader.pid)  # as if the id were a reaped leader's, and this process had it now
        with pytest.raises(subprocess.TimeoutExpired):
            leader.wait(0.2)
        assert member.status() == psutil.STATUS_STOPPED
        leader.stdin.close()
        assert leader.wait(10) == 0
        assert member.status() == psutil.STATUS_STOPPED
        kill_leaderless_group(leader.pid)
        assert leader.stdout.read() == b""  # the member has ended too
    kill_leaderless_group(leader.pid)  # of nothing
