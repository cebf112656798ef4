"""Specs of simulated workers."""

from dataclasses import replace

import pytest

from baton.simulation.engine.engine import SimulatedEngine
from baton.simulation.engine.spec import WorkerSpec


def test_step_time_is_linear() -> None:
    spec = WorkerSpec(step_s=0.01, sequence_s=0.001, prefill_tokens_per_s=1000)
    assert spec.step_time_s(0, 0) == pytest.approx(0.01)
    assert spec.step_time_s(20, 500) == pytest.approx(0.01 + 0.02 + 0.5)


def test_prompt_tokens_take_longer_the_more_they_attend_to() -> None:
    spec = WorkerSpec(step_s=0.0, sequence_s=0.0, prefill_tokens_per_s=1000, attended_s=1e-6)
    assert spec.step_time_s(0, 500, 125_250) == pytest.approx(0.5 + 0.12525)
    assert spec.scaled(2).step_time_s(0, 500, 125_250) == pytest.approx(1.0 + 0.2505)


def test_a_step_with_prompts_takes_longer_however_short_they_are() -> None:
    spec = WorkerSpec(step_s=0.01, sequence_s=0.001, prompts_step_s=0.004, prefill_tokens_per_s=1000)
    assert spec.step_time_s(20, 0) == pytest.approx(0.03)
    assert spec.step_time_s(20, 2) == pytest.approx(0.03 + 0.004 + 0.002)
    assert spec.scaled(2).step_time_s(20, 2) == pytest.approx(2 * spec.step_time_s(20, 2))


def test_time_scale_stretches_every_time() -> None:
    spec, slow = WorkerSpec(), WorkerSpec().scaled(3)
    assert slow.step_time_s(7, 1000) == pytest.approx(3 * spec.step_time_s(7, 1000))
    assert slow.link_bytes_per_s == pytest.approx(spec.link_bytes_per_s / 3)
    assert spec.scaled(1) == spec


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_size", 0),
        ("num_blocks", 1),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 256),
        ("max_queue_len", 0),
        ("step_s", -0.1),
        ("prompts_step_s", -1e-9),
        ("attended_s", -1e-9),
        ("prefill_tokens_per_s", 0.0),
        ("link_bytes_per_s", 0.0),
        ("num_token_ids", 0),
    ],
)
def test_an_impossible_spec_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} is"):
        SimulatedEngine(replace(WorkerSpec(), **{name: value}))  # type: ignore[arg-type]  # one field of any type


@pytest.mark.parametrize("time_scale", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_time_scale_is_refused(time_scale: float) -> None:
    with pytest.raises(ValueError, match="time scale"):
        SimulatedEngine(WorkerSpec(), time_scale)
