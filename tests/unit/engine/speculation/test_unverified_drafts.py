"""Blocks and states of drafts that no step verified, or whose states memory did not let advance."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from baton.engine.execution.in_flight_step import LaunchedStep
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import Schedule, ScheduledRequest, StepResult
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.unit.engine.fake_model import reference
from tests.unit.engine.scheduler_rig import Rig
from tests.unit.engine.speculation.speculation_rig import assert_equal, copies, draft_always, engine_of, run
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


def test_states_that_run_out_of_memory_while_they_advance_are_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the requests with drafts start again: the states of the others are right."""
    model, draw = make_checkpoint("qwen3-next", tmp_path / "model"), random.Random(3)
    options = {"state_checkpoint_tokens": 8, "kv_cache_memory_bytes": 1 << 23}
    requests = [
        Request(
            RequestId(str(number)),
            draw.choices(range(3, VOCAB_SIZE), k=length),
            length,
            SamplingParams(temperature=0, max_tokens=30, ignore_eos=True),
        )
        for number, length in enumerate((1, 7, 16, 23, 31, 40))
    ]
    expected = run(engine_of(model, False, **options), copies(requests))
    engine = engine_of(model, True, **options)
    draft_always(engine, {name: outcome.token_ids for name, outcome in expected.items()}, 1)
    accept, waits, num_restarted = engine.runner.model.accept, [], 0
    monkeypatch.setattr("baton.engine.execution.step_launcher.wait_for", waits.append)

    def failing(counts: Sequence[int]) -> None:
        nonlocal num_restarted
        accept(counts)  # the worst case: all states have advanced
        if draw.random() < 0.3:
            num_restarted += len(counts)
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(engine.runner.model, "accept", failing)
    assert_equal(run(engine, requests), expected)
    assert len(waits) > 3
    assert engine.scheduler.num_preemptions == num_restarted
    assert caplog.text.count("ran out of GPU memory; the next one is smaller") == len(waits)


def test_a_request_that_ended_in_the_meantime_is_not_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = make_checkpoint("qwen3-next", tmp_path / "model"), list(range(3, 30))
    engine = engine_of(model, True, state_checkpoint_tokens=8, kv_cache_memory_bytes=1 << 23)
    draft_always(engine, {"a": range(3, 40)}, 1)
    request = Request(
        RequestId("a"), prompt, len(prompt), SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    )
    engine.add(request)
    while not (scheduled := engine.schedule().requests)[0].drafts:
        engine.run(Schedule(scheduled))
    step = engine.launch(scheduled)
    assert step is not None
    engine.abort(request.request_id)

    def failing(counts: Sequence[int]) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(engine.runner.model, "accept", failing)
    assert not engine.collect(step).outputs
    engine.check_integrity()
    assert engine.blocks.num_free == engine.blocks.num_usable
