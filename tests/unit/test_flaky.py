"""Failed tests run a second time; only those that then pass are forgiven."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.flaky import OPTION, Rerun

def pytest_addoption(parser):
    parser.addoption(OPTION, action="store_true")

def pytest_configure(config):
    if config.getoption(OPTION):
        config.pluginmanager.register(Rerun())
"""
FLAKY = """
from pathlib import Path

def test_second_time():
    first = Path(__file__).with_name("ran")
    if not first.exists():
        first.touch()
        raise AssertionError
"""
BROKEN = "def test_never(): assert False\n"


def run(folder: Path, tests: str, *options: str) -> tuple[int, list[str]]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(tests)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rerun-failed",
        *options,
    ]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, [line for line in done.stdout.splitlines() if line.startswith("FLAKY: ")]


def test_a_flaky_test_is_printed_and_forgiven(tmp_path: Path) -> None:
    status, flaky = run(tmp_path, FLAKY)
    assert status == 0
    assert flaky == ["FLAKY: test_it.py::test_second_time failed, and passed when it ran again alone"]


def test_a_broken_test_fails_the_run(tmp_path: Path) -> None:
    assert run(tmp_path, BROKEN) == (1, [])
    status, flaky = run(tmp_path, FLAKY.replace("ran", "ran_again") + BROKEN)
    assert (status, len(flaky)) == (1, 1)


def test_a_module_that_cannot_be_imported_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_unknown.py").write_text("import unknown_module")
    for place, options in enumerate([("--continue-on-collection-errors",), ("-p", "xdist", "-n", "1")]):
        status, flaky = run(tmp_path, FLAKY.replace("ran", f"ran_{place}"), *options)
        assert (status, len(flaky)) == (1, 1)
