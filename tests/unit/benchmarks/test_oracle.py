"""The oracle of the routing benchmark, in virtual time."""

import pytest

from benchmarks.routing.oracle import run_oracle
from benchmarks.routing.topology import SERVING_SPEC, Topology
from benchmarks.routing.workload import Turn, Workload

PAIR = Topology("2 colocated", ("both", "both"), SERVING_SPEC)
SPLIT = Topology("1 prefill + 1 decode", ("prefill", "decode"), SERVING_SPEC)
PROMPT = list(range(300, 1300))
STEP_S = SERVING_SPEC.step_s + len(PROMPT) / SERVING_SPEC.prefill_tokens_per_s


def test_a_repeated_prompt_goes_to_the_worker_that_has_it_cached() -> None:
    result = run_oracle(PAIR, Workload("repeated", [Turn(0.0, PROMPT, 1), Turn(5.0, PROMPT, 1, after=0)]))
    assert result.hit_rate == pytest.approx(992 / 2000)  # whole blocks
    assert result.load_max_over_mean == pytest.approx(2.0)  # both went to the same one of two workers


def test_simultaneous_prompts_go_to_different_workers() -> None:
    other = [token + 1000 for token in PROMPT]
    result = run_oracle(PAIR, Workload("together", [Turn(0.0, PROMPT, 1), Turn(0.01, other, 1)]))
    assert result.requests_max_over_mean == 1.0
    assert result.ttft_s == pytest.approx([STEP_S, STEP_S])


def test_a_prompt_is_prefilled_remotely_if_the_decode_worker_is_busy() -> None:
    other = [token + 1000 for token in PROMPT]
    result = run_oracle(SPLIT, Workload("split", [Turn(0.0, PROMPT, 100), Turn(1.0, other, 2)]))
    assert result.hit_rate == 0.0
    assert result.ttft_s == pytest.approx([STEP_S, STEP_S], rel=0.1)
    assert result.num_failed == 0
