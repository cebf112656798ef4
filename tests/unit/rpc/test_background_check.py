"""Checks of files that hang: they delay a caller once, and never the end of the process."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from baton.rpc import background_check
from baton.rpc.background_check import BackgroundCheck


class HungPath:
    """A FIFO without a writer: its open blocks, as that of a file on a hung mount."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path
        self.num_opens = 0

    def open(self) -> None:
        """Block until `release`."""
        self.num_opens += 1
        self._path.open("rb").close()

    def release(self) -> None:
        """Let one open end, if there is one."""
        with suppress(OSError):  # nothing waits
            os.close(os.open(self._path, os.O_WRONLY | os.O_NONBLOCK))


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[HungPath]:
    path = HungPath(tmp_path / "fifo")
    yield path
    path.release()
    wait_for_threads()


def wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("check of "):
            thread.join(10)
            assert not thread.is_alive()


def test_a_usual_check_has_ended_when_run_returns() -> None:
    seen = []
    check = BackgroundCheck("files", lambda: seen.append(threading.current_thread().name))
    check.run()
    check.run()
    assert seen == ["check of files"] * 2


def test_a_check_that_hangs_delays_one_call_and_runs_once(hung: HungPath, caplog: pytest.LogCaptureFixture) -> None:
    check = BackgroundCheck("files", hung.open)
    check.run()
    assert [(record.levelno, "reading files takes long" in record.message) for record in caplog.records] == [
        (logging.WARNING, True)
    ]
    start_s = time.monotonic()
    for _ in range(100):
        check.run()
    assert time.monotonic() - start_s < 10 * background_check.MAX_WAIT_S  # 100 waits would take ten times that
    assert hung.num_opens == 1
    assert len(caplog.records) == 1
    hung.release()
    wait_for_threads()
    check.run()
    assert hung.num_opens == 2


def test_calls_of_several_threads_share_a_check() -> None:
    running = 0
    most = 0

    def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.001)
        running -= 1

    check = BackgroundCheck("files", work)
    threads = [threading.Thread(target=lambda: [check.run() for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_check_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    program = (
        "import asyncio, sys\n"
        "from baton.rpc.background_check import BackgroundCheck\n"
        "async def main(): BackgroundCheck('files', lambda: open(sys.argv[1]).close()).run()\n"
        "asyncio.run(main())\n"
        "print('ended')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "fifo")], capture_output=True, text=True, timeout=30, check=True
    )
    assert ran.stdout == "ended\n"
