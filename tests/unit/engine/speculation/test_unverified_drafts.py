"""Blocks of drafts that no step verified: they are free before the next step is chosen."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from baton.engine.execution.in_flight_step import LaunchedStep
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import ScheduledRequest, StepResult
from tests.checkpoints import make_checkpoint
from tests.unit.engine.fake_model import reference
from tests.unit.engine.scheduler_rig import Rig
from tests.unit.engine.speculation.speculation_rig import copies, engine_of, run
from tests.unit.engine.speculation.test_speculative_scheduling import RandomDrafter


def test_a_late_mask_leaves_no_blocks_behind() -> None:
    rig = Rig(drafter=RandomDrafter(0, right=1.0, least=5))
    request = rig.add("late", [1, 2, 3], 40)
    rig.step()
    schedule = rig.scheduler.schedule()
    assert len(schedule.requests[0].drafts) == 5
    rig.scheduler.update(schedule.requests, [StepResult()])
    assert len(request.block_table) == rig.scheduler.blocks.num_blocks_for(request.num_tokens)
    assert rig.speculator is not None
    assert rig.speculator.counters.num_drafts == 0
    rig.run_to_end()
    assert rig.outputs[request.request_id] == reference([1, 2, 3], 40)


def test_a_step_that_ran_out_of_memory_leaves_no_blocks_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    bias = dict.fromkeys((7, 8), 20.0)
    sampling = SamplingParams(temperature=0, logit_bias=bias, max_tokens=60, ignore_eos=True)
    request = Request(RequestId("a"), [7, 8, 7], 3, sampling)
    expected = run(engine_of(model, False), copies([request]))
    engine = engine_of(model, True)
    launch = engine.runner.launch
    failed: list[ScheduledRequest] = []

    def failing(scheduled: Sequence[ScheduledRequest], behind: LaunchedStep | None = None) -> LaunchedStep:
        num_tokens = request.num_tokens + len(scheduled[0].drafts)
        assert len(request.block_table) == engine.blocks.num_blocks_for(num_tokens)
        if len(scheduled[0].drafts) > 3:
            failed.extend(scheduled)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return launch(scheduled, behind)

    monkeypatch.setattr(engine.runner, "launch", failing)
    assert run(engine, [request]) == expected
    assert failed
