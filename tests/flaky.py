"""Second run of failed tests, each alone in a process of its own, after all others."""

import subprocess
import sys

import pytest

OPTION = "--rerun-failed"
TIMEOUT_S = 600.0
MAX_RERUNS = 20  # with more failures something is broken, and a second run would only take time


class Rerun:
    """Failed tests of a run. A test that passes the second time is printed as flaky and does not fail the run."""

    def __init__(self) -> None:
        self._failed: dict[str, None] = {}  # node ids, in order
        self._flaky: list[str] = []
        self._is_whole = True  # every test module could be imported

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure in any phase of a test."""
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a module whose tests cannot be run: no second run forgives that."""
        self._is_whole &= not report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Run the failed tests again and set the exit status to success if all of them pass."""
        if exitstatus != pytest.ExitCode.TESTS_FAILED or not 0 < len(self._failed) <= MAX_RERUNS:
            return
        self._flaky = [nodeid for nodeid in self._failed if _passes_alone(nodeid)]
        if self._is_whole and len(self._flaky) == len(self._failed):
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print a line for each flaky test."""
        for nodeid in self._flaky:
            terminalreporter.write_line(f"FLAKY: {nodeid} failed, and passed when it ran again alone")


def _passes_alone(nodeid: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", nodeid]
    try:
        done = subprocess.run(command, timeout=TIMEOUT_S, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return False
    print(f"\nAgain, alone: {nodeid}\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
    return done.returncode == pytest.ExitCode.OK
