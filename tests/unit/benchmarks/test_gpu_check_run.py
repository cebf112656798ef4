"""Runs of the GPU check: stages at once, interruptions, and results and checkpoints that stages share."""

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import small_models
from benchmarks.gpu.machine import GpuMachine, describe_gpu
from benchmarks.gpu.results import merge
from benchmarks.gpu.small_models import SMALL_MODELS, saved
from benchmarks.gpu.stage import Record, Setting
from benchmarks.gpu.stage_process import run_stage
from benchmarks.gpu.stages import Stage, stage_named

CPU = torch.device("cpu")
TIMEOUT_S = 60.0
COMPARISONS = [stage_named(name) for name in ("ops", "models", "lora", "mamba")]
BENCHMARKS = [stage_named(name) for name in ("roofline", "decode speed")]


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(CPU, True, tmp_path)


@pytest.fixture
def machine() -> GpuMachine:
    return describe_gpu(CPU)


def finished() -> dict[str, Any]:
    """The result of a stage that is right."""
    return Record(is_finished=True).as_json()


def test_comparisons_run_at_a_time_and_benchmarks_alone(
    setting: Setting, machine: GpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, running, ended = Barrier(2), set[str](), list[Stage]()

    def run(stage: Stage, setting: Setting, timeout_s: float, stop: Event, num_threads: int) -> dict[str, Any]:
        running.add(stage.name)
        if stage.is_benchmark:
            assert running == {stage.name}
            assert not num_threads  # all
        else:
            assert num_threads >= 1
            together.wait(TIMEOUT_S)
        running.discard(stage.name)
        ended.append(stage)
        return finished()

    monkeypatch.setattr(command, "run_stage", run)
    check = command.Check(setting, machine, setting.directory / "gpu.json", num_jobs=2)
    check.run([*BENCHMARKS, *COMPARISONS], 100.0)
    assert ended[-2:] == BENCHMARKS  # after all comparisons
    assert set(ended) == {*COMPARISONS, *BENCHMARKS}
    kept = json.loads((setting.directory / "gpu.json").read_text())["stages"]
    assert kept.keys() == check.results.keys() == {each.name for each in ended}


def test_stages_share_the_time_and_get_no_more_of_it_than_is_left(
    setting: Setting, machine: GpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, limits_s = [0.0], list[float]()

    def run(stage: Stage, setting: Setting, timeout_s: float, stop: Event, num_threads: int) -> dict[str, Any]:
        limits_s.append(timeout_s)
        now_s[0] += 48.0
        return finished()

    monkeypatch.setattr(command, "run_stage", run)
    monkeypatch.setattr(command.time, "monotonic", lambda: now_s[0])
    check = command.Check(setting, machine, None)
    check.run([*COMPARISONS, *BENCHMARKS], 100.0)
    assert limits_s == [60.0, 52.0, 30.0, 52.0]  # the third comparison would have 4 s
    assert list(check.results) == ["ops", "models", "roofline", "decode speed"]


def test_an_interrupted_stage_ends_and_keeps_its_findings(setting: Setting) -> None:
    stop = Event()
    stop.set()
    ended = run_stage(stage_named("models"), setting, TIMEOUT_S, stop)
    assert ended["error"] == "was interrupted"
    assert not ended["ok"]


def test_a_check_that_is_terminated_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(stage: Stage, setting: Setting, timeout_s: float, stop: Event, num_threads: int) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(TIMEOUT_S)
        return finished() | {"ok": False, "error": "was interrupted", "log": ""}

    monkeypatch.setattr(command, "run_stage", run)
    results = tmp_path / "gpu.json"
    arguments = ["--device", "cpu", "--only", "models", "--only", "ops", "--json", str(results)]
    monkeypatch.setattr(sys, "argv", ["gpu", *arguments, "--directory", str(tmp_path)])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit) as ended:
            command.main()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert ended.value.code == 1
    assert json.loads(results.read_text())["stages"].keys() == {"models"}  # `ops` was not started


def test_results_of_checks_that_run_at_once_are_all_kept(tmp_path: Path, machine: GpuMachine) -> None:
    path, names = tmp_path / "gpu.json", [f"stage {number}" for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: merge(path, machine, name, finished()), names))
    assert json.loads(path.read_text())["stages"].keys() == set(names)
    assert list(tmp_path.iterdir()) == [path]


def test_results_stay_whole_if_writing_them_fails(
    tmp_path: Path, machine: GpuMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.json"
    merge(path, machine, "ops", finished())
    before = path.read_text()

    def write_half(self: Path, text: str) -> int:
        self.write_bytes(text.encode()[: len(text) // 2])
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises(OSError, match="full"):
        merge(path, machine, "models", finished())
    assert path.read_text() == before


def test_a_checkpoint_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its maker may be killed, and another stage may make it at the same time."""
    model = SMALL_MODELS[0]

    def make(architecture: str, directory: Path, **options: Any) -> Path:
        directory.mkdir(parents=True)
        for name in (small_models.SAVED, "model.safetensors"):
            (directory / name).write_text("{}")
        return directory

    def fail(architecture: str, directory: Path, **options: Any) -> Path:
        directory.mkdir(parents=True)
        (directory / small_models.SAVED).write_text("{}")
        raise KeyboardInterrupt

    def make_twice(architecture: str, directory: Path, **options: Any) -> Path:
        make(architecture, tmp_path / model.architecture, **options)
        return make(architecture, directory, **options)

    monkeypatch.setattr(small_models, "save_checkpoint", fail)
    with pytest.raises(KeyboardInterrupt):
        saved(model, tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(small_models, "save_checkpoint", make_twice)
    assert saved(model, tmp_path) == tmp_path / model.architecture
    assert [each.name for each in tmp_path.iterdir()] == [model.architecture]
    assert (tmp_path / model.architecture / "model.safetensors").exists()
