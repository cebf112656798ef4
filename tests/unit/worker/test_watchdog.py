"""A process that hangs ends; a slow one logs it; an idle one continues."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint

ROOT = Path(__file__).parents[3]
SCRIPT = "tests.unit.worker.watched_engine"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("watchdog") / "model")


def run(checkpoint: Path, what: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", SCRIPT, str(checkpoint), what]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)


def test_a_stuck_engine_ends_its_process_with_stack_traces(checkpoint: Path) -> None:
    ended = run(checkpoint, "engine")
    assert ended.returncode == 1
    assert ended.stdout == "not ready\n"
    assert "the engine's current step has taken over 0.4 s" in ended.stderr
    assert "watched_engine.py" in ended.stderr  # where each thread was


def test_a_stuck_event_loop_ends_its_process(checkpoint: Path) -> None:
    ended = run(checkpoint, "loop")
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert "watched_engine.py" in ended.stderr


def test_a_slow_step_is_logged_while_it_runs(checkpoint: Path) -> None:
    ended = run(checkpoint, "slow")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "not ready\nready\n"


def test_short_steps_and_idleness_do_not_end_the_process(checkpoint: Path) -> None:
    ended = run(checkpoint, "none")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ""
