"""CPU cores that an engine computes on."""

import os
import threading
from pathlib import Path

import pytest
import torch

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import EngineError
from baton.engine.execution.cores import cores_of_rank, format_cores, parse_cores, running_on
from baton.engine.loop import EngineLoop
from tests.checkpoints import make_checkpoint


@pytest.mark.parametrize(
    ("text", "cores"), [("0", (0,)), ("0-3,8", (0, 1, 2, 3, 8)), ("4, 2-3,3", (4, 2, 3)), ("7-7", (7,))]
)
def test_core_lists_are_parsed_and_formatted(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores
    assert set(parse_cores(format_cores(cores))) == set(cores)


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-2", "1,,2", "1-2-3", "0x1", "1.5"])
def test_invalid_core_lists_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 0-3,8"):
        parse_cores(text)
    with pytest.raises(EngineError, match="such as 0-3,8"):
        cores_of_rank(text, 0, 1)


def test_cores_outside_the_affinity_mask_are_refused() -> None:
    with pytest.raises(EngineError, match="may only run on"):
        cores_of_rank("70000", 0, 1)


def test_ranks_divide_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert [cores_of_rank("0-7", rank, 3) for rank in range(3)] == [(0, 1), (2, 3, 4), (5, 6, 7)]
    assert [cores_of_rank("5", rank, 2) for rank in range(2)] == [(5,), (5,)]
    assert cores_of_rank(None, 1, 2) == ()


def test_the_affinity_of_a_thread_is_restored() -> None:
    before = os.sched_getaffinity(0)
    with running_on([min(before)]):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
    with running_on([]):
        assert os.sched_getaffinity(0) == before


def test_only_the_engine_thread_runs_on_the_configured_cores(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    model = make_checkpoint("qwen3", tmp_path / "model")
    engine = Engine(EngineConfig(model=str(model), cores=str(core), num_threads=1, kv_cache_memory_bytes=1 << 20))
    assert os.sched_getaffinity(0) == before
    loop = EngineLoop(engine, lambda _: None, lambda _: None)
    loop.start()

    def place(_: Engine) -> tuple[set[int], str]:
        torch.ones(4).sum()
        return os.sched_getaffinity(0), threading.current_thread().name

    assert loop.call(place).result(timeout=30) == ({core}, "engine")
    loop.stop()
