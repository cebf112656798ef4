"""Drivers in separate processes on a tiny checkpoint: Baton's and transformers', with the same greedy tokens."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks.engines.cells import BF16, Cell
from benchmarks.engines.contestants import CONTESTANTS, OURS
from benchmarks.engines.drivers.driver import Answer
from benchmarks.engines.engine_process import EngineFailed, EngineProcess
from benchmarks.engines.profile import BATCHES, PARTS, profile
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.process_ends import wait_gone

CELL = Cell(BF16, 48, 2)
NUM_OUTPUT_TOKENS = 6
CRASH = """
import subprocess, sys
pause = (sys.executable, "-c", "import signal; signal.pause()")
print(subprocess.Popen(pause, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid, file=sys.stderr, flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("qwen3"), dtype=torch.bfloat16)


def with_engine(name: str, model: Path, use: Callable[[EngineProcess], None]) -> None:
    """Run a driver on one core, and check that nothing of it is left."""
    contestant = next(each for each in CONTESTANTS if each.name == name)
    cores, nowhere = sorted(os.sched_getaffinity(0))[:1], Path("nowhere")  # both use this environment
    with (
        tempfile.TemporaryFile() as log,
        EngineProcess(
            contestant.python(nowhere), contestant.driver, contestant.environment(nowhere), cores, log
        ) as engine,
    ):
        engine.load(CELL.setting(str(model), 1))
        use(engine)
        pid = engine.pid
    assert not psutil.pid_exists(pid)


def outputs_of(name: str, model: Path) -> list[Answer]:
    """Return the outputs of two clients with four prompts."""
    found: list[Answer] = []

    def use(engine: EngineProcess) -> None:
        engine.reset_peak()
        found.extend(engine.run(CELL.prompts(VOCAB_SIZE, seed=0), NUM_OUTPUT_TOKENS, CELL.concurrency))
        assert psutil.Process(engine.pid).memory_info().rss * 0.5 < engine.peak_bytes() < 8e9
        assert psutil.Process(engine.pid).cpu_affinity() == sorted(os.sched_getaffinity(0))[:1]

    with_engine(name, model, use)
    return found


@pytest.mark.slow
def test_both_drivers_generate_the_same_tokens(checkpoint: Path) -> None:
    ours, theirs = (outputs_of(name, checkpoint) for name in (OURS, "transformers"))
    assert len(ours) == len(theirs) == CELL.num_requests
    assert [answer.token_ids for answer in ours] == [answer.token_ids for answer in theirs]
    for answer in (*ours, *theirs):
        assert len(answer.token_ids) == NUM_OUTPUT_TOKENS
        assert answer.submitted_s < answer.first_s < answer.last_s


@pytest.mark.slow
def test_an_engines_error_is_reported(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match=r"InvalidCheckpoint: .*config\.json"):
        with_engine(OURS, tmp_path, lambda engine: None)


async def test_a_crashed_driver_leaves_no_child(tmp_path: Path) -> None:
    """The child is stopped: an engine's processes may hang once their driver is gone."""
    (tmp_path / "crash.py").write_text(CRASH)
    cores = sorted(os.sched_getaffinity(0))[:1]
    with (
        tempfile.TemporaryFile() as log,
        EngineProcess(Path(sys.executable), f"{tmp_path}/crash", {}, cores, log) as engine,
    ):
        with pytest.raises(EngineFailed, match="the process has ended"):
            engine.load(CELL.setting("", 1))
        log.seek(0)
        child = psutil.Process(int(log.read()))
        child.suspend()
    await wait_gone(child)


@pytest.mark.slow
def test_the_parts_of_a_step_add_up_to_the_whole(checkpoint: Path) -> None:
    reports = list(profile(checkpoint, torch.get_num_threads()))
    assert len(reports) == 2 * len(BATCHES)
    for parts, operators in zip(reports[::2], reports[1::2], strict=True):
        *rows, whole = parts.rows
        assert [row[0] for row in rows] == [*PARTS, "the rest"]
        assert all(float(row[1]) > 0 for row in rows)  # including the rest: nothing is counted twice
        assert sum(float(row[1]) for row in rows) == pytest.approx(float(whole[1]))
        assert float(rows[0][1]) == max(float(row[1]) for row in rows)  # the model's forward
        assert any(str(row[0]).startswith(("aten::", "mkldnn::", "onednn::")) for row in operators.rows)
