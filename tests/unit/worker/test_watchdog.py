"""A process that hangs ends; a slow one logs it; an idle one continues."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint

ROOT = Path(__file__).parents[3]
SCRIPT = "tests.unit.worker.watched_engine"


MODES = ("engine", "loop", "slow", "none")


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit code and the output of a process that has ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """One process for each mode, one after the other."""
    directory = tmp_path_factory.mktemp("watchdog")
    checkpoint = make_checkpoint("qwen3", directory / "model")
    subprocess.run([sys.executable, "-m", SCRIPT, checkpoint, directory, *MODES], cwd=ROOT, timeout=120, check=True)

    def written(what: str, name: str) -> str:
        return (directory / f"{what}.{name}").read_text()

    return {what: Ended(int(written(what, "code")), written(what, "stdout"), written(what, "stderr")) for what in MODES}


def test_a_stuck_engine_ends_its_process_with_stack_traces(ended: dict[str, Ended]) -> None:
    process = ended["engine"]
    assert process.returncode == 1
    assert process.stdout == "not ready\n"
    assert "the engine's current step has taken over 0.4 s" in process.stderr
    assert "watched_engine.py" in process.stderr  # where each thread was


def test_a_stuck_event_loop_ends_its_process(ended: dict[str, Ended]) -> None:
    process = ended["loop"]
    assert process.returncode == 1
    assert "Timeout" in process.stderr
    assert "watched_engine.py" in process.stderr


def test_a_slow_step_is_logged_while_it_runs(ended: dict[str, Ended]) -> None:
    process = ended["slow"]
    assert process.returncode == 0, process.stderr
    assert process.stdout == "not ready\nready\n"


def test_short_steps_and_idleness_do_not_end_the_process(ended: dict[str, Ended]) -> None:
    process = ended["none"]
    assert process.returncode == 0, process.stderr
    assert process.stdout.replace("not ready\nready\n", "") == ""  # a step may be slow on a busy machine
