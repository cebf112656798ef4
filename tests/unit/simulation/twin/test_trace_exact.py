"""The twin compared with engines that compute every step with the real scheduler."""

from collections.abc import Sequence
from statistics import median

import pytest

from baton.router.policy.cluster import WorkerRole
from baton.router.policy.cost_model import CostModel
from baton.router.policy.policy import CostPolicy
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.machine import Machine
from baton.simulation.twin.record import Record
from baton.simulation.twin.twin import Twin
from tests.marks import each_value
from tests.unit.simulation.exact_twin import TokenRequest, run_exact
from tests.unit.simulation.trace_load import random_load

ROOMY = WorkerSpec(num_blocks=4000, max_num_seqs=16, max_num_batched_tokens=128, step_s=0.01, sequence_s=0.0005)
SHORT = WorkerSpec(num_blocks=120, max_num_seqs=16, max_num_batched_tokens=128, step_s=0.01, sequence_s=0.0005)
DEEP = WorkerSpec(
    num_blocks=4000, max_num_seqs=16, max_num_batched_tokens=128, step_s=0.01, prompts_step_s=0.003, attended_s=1e-6
)
FEW_PLACES = WorkerSpec(num_blocks=4000, max_num_seqs=3, max_num_batched_tokens=128, step_s=0.01, sequence_s=0.0005)
SAME_S = 1e-9
MODEL = CostModel(min_source_blocks=1 << 30)  # exact engines pull no prefixes from third workers


def both_twins(
    spec: WorkerSpec, prefill: int, decode: int, both: int, load: Sequence[TokenRequest], below: int | None
) -> tuple[list[Record], list[Record]]:
    """Return the records of exact engines and of the twin."""
    machine, policy = Machine(spec=spec, overhead_s=0.0031, handover_s=0.0017), CostPolicy(MODEL, below)
    roles = [WorkerRole.PREFILL] * prefill + [WorkerRole.DECODE] * decode + [WorkerRole.BOTH] * both
    plan = DeploymentPlan(machine=machine, prefill=prefill, decode=decode, both=both)

    outcome = Twin(plan, [each.request for each in load], policy).run()
    return run_exact(machine, roles, policy, load), list(outcome.records)


@each_value
@pytest.mark.parametrize("spec", [ROOMY, FEW_PLACES, DEEP], ids=["roomy", "few places", "deep"])
@pytest.mark.parametrize(("prefill", "decode", "both"), [(0, 0, 1), (1, 1, 0)], ids=["colocated", "disaggregated"])
def test_times_are_equal(spec: WorkerSpec, prefill: int, decode: int, both: int) -> None:
    """With enough memory, up to rounding: admission, chunks, cached prefixes, handovers, decoding."""
    for seed in range(3):
        load = random_load(seed, 80)
        exact, simulated = both_twins(spec, prefill, decode, both, load, below=0)
        for one, other in zip(exact, simulated, strict=True):
            assert other.first_s == pytest.approx(one.first_s, abs=SAME_S)
            assert other.last_s == pytest.approx(one.last_s, abs=SAME_S)
            assert (other.num_cached_tokens, other.is_remote) == (one.num_cached_tokens, one.is_remote)


def test_times_of_a_colocated_worker_with_eviction_and_preemption_are_equal() -> None:
    num_preemptions = 0
    for seed in range(6):
        load = random_load(seed, 80)
        exact, simulated = both_twins(SHORT, 0, 0, 1, load, below=0)
        for one, other in zip(exact, simulated, strict=True):
            assert (other.first_s, other.last_s) == pytest.approx((one.first_s, one.last_s), abs=SAME_S)
            assert other.num_cached_tokens == one.num_cached_tokens
        plan = DeploymentPlan(machine=Machine(spec=SHORT), both=1)
        num_preemptions += Twin(plan, [each.request for each in load]).run().num_preemptions
    assert num_preemptions > 0


@pytest.mark.slow
def test_medians_agree_if_handovers_wait_for_memory() -> None:
    """If memory is short, handovers wait for each other, and ties are broken differently. Medians are within 10%."""
    for seed in range(4):
        exact, simulated = both_twins(SHORT, 1, 1, 0, random_load(seed, 80), below=0)
        assert median_ttft_s(simulated) == pytest.approx(median_ttft_s(exact), rel=0.1)
        assert mean_tpot_s(simulated) == pytest.approx(mean_tpot_s(exact), rel=0.05)


@pytest.mark.slow
def test_medians_of_a_routed_cluster_agree() -> None:
    """Reports arrive at other times, so that plans differ; medians are within 10%."""
    for prefill, decode, both in ((3, 3, 0), (0, 0, 4)):
        load = random_load(9, 300)
        exact, simulated = both_twins(ROOMY, prefill, decode, both, load, below=None)
        assert median_ttft_s(simulated) == pytest.approx(median_ttft_s(exact), rel=0.1)
        assert mean_tpot_s(simulated) == pytest.approx(mean_tpot_s(exact), rel=0.05)
        assert cached(simulated) == pytest.approx(cached(exact), rel=0.1)


def median_ttft_s(records: Sequence[Record]) -> float:
    return median(record.ttft_s for record in records)


def mean_tpot_s(records: Sequence[Record]) -> float:
    times = [record.tpot_s for record in records if record.num_output_tokens > 1]
    return sum(times) / len(times)


def cached(records: Sequence[Record]) -> int:
    return sum(record.num_cached_tokens for record in records)
