"""Steps that do not fit into memory: smaller ones follow, and no token changes."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.execution.in_flight_step import LaunchedStep
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import Schedule, ScheduledRequest
from baton.engine.scheduling.step_budget import StepBudget
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("llama3") / "model")


def serve(engine: Engine) -> list[list[int]]:
    draw = random.Random(1)
    requests = []
    for number in range(6):
        prompt = draw.choices(range(3, VOCAB_SIZE), k=draw.randrange(1, 120))
        sampling = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        requests.append(Request(RequestId(str(number)), prompt, len(prompt), sampling))
        engine.add(requests[-1])
    while engine.has_work:
        engine.run(engine.schedule())
        engine.check_integrity()
    return [request.token_ids for request in requests]


def small_memory(engine: Engine, most: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make steps of more than `most` tokens fail; return the sizes, in tokens, that the engine tries."""
    tried: list[int] = []
    launch = engine.runner.launch

    def limited(scheduled: Sequence[ScheduledRequest], behind: LaunchedStep | None = None) -> LaunchedStep:
        tried.append(sum(item.num_new_tokens for item in scheduled))
        if tried[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return launch(scheduled, behind)

    monkeypatch.setattr(engine.runner, "launch", limited)
    return tried


def test_tokens_are_the_same_in_smaller_steps(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(model=str(directory), dtype="float32", kv_cache_memory_bytes=1 << 22)
    expected = serve(Engine(config))
    engine = Engine(config)
    tried = small_memory(engine, 40, monkeypatch)
    assert serve(engine) == expected
    assert max(tried) > 40
    assert "ran out of GPU memory" in caplog.text


def test_a_step_that_does_not_fit_has_ended_on_the_device_before_the_next_schedule(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernels write to blocks that a preemption may give to a request whose KV a peer sends."""
    engine, waits = Engine(EngineConfig(model=str(directory), kv_cache_memory_bytes=1 << 22)), []
    monkeypatch.setattr("baton.engine.execution.step_launcher.wait_for", waits.append)
    tried = small_memory(engine, 40, monkeypatch)
    schedule = engine.scheduler.schedule

    def checked() -> Schedule:
        assert len(waits) == sum(size > 40 for size in tried)
        return schedule()

    monkeypatch.setattr(engine.scheduler, "schedule", checked)
    serve(engine)
    assert waits
    assert set(waits) == {engine.pool.device}


def test_a_step_of_one_token_that_does_not_fit_raises(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(EngineConfig(model=str(directory), kv_cache_memory_bytes=1 << 22))
    tried = small_memory(engine, 0, monkeypatch)
    with pytest.raises(torch.OutOfMemoryError):
        serve(engine)
    assert tried[-1] == 1


def test_the_step_budget_recovers_after_it_shrank() -> None:
    budget = StepBudget(1000)
    assert budget.shrink(800)
    assert budget.num_tokens == 400
    for _ in range(1000):
        budget.recover()
    assert 720 <= budget.num_tokens < 800  # below the size that failed
    for _ in range(1 << 15):
        budget.recover()
    assert budget.num_tokens == 1000
    assert not budget.shrink(1)
    assert budget.num_tokens == 1
