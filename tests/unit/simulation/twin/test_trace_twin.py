"""Invariants of the twin: every request ends once, tokens and blocks are conserved, GPUs stay within the budget."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.deployment.autoscaling.settings import SLO, ScalingSettings
from baton.router.policy.cost_model import CostModel
from baton.router.policy.named_policies import make_policy
from baton.router.policy.policy import CostPolicy
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.machine import Machine
from baton.simulation.twin.outcome import Outcome
from baton.simulation.twin.trace_request import TraceRequest
from baton.simulation.twin.twin import Twin, simulate
from tests.unit.simulation.trace_load import random_load

SPEC = WorkerSpec(num_blocks=200, max_num_seqs=8, max_num_batched_tokens=128, max_queue_len=64)
MACHINE = Machine(spec=SPEC, overhead_s=0.004, handover_s=0.002)


def requests_of(seed: int, num_requests: int, seconds: float) -> list[TraceRequest]:
    return [each.request for each in random_load(seed, num_requests, seconds=seconds)]


def check(outcome: Outcome, twin: Twin, num_requests: int) -> None:
    assert len(outcome.records) == num_requests
    for record in outcome.records:
        assert record.num_ends == 1
        if record.refusal is None:
            assert record.num_received_tokens == record.num_output_tokens
            assert record.due_s < record.first_s <= record.last_s
            assert 0 <= record.num_cached_tokens < record.num_prompt_tokens
    for pool in (twin.prefill, twin.decode):
        for worker in pool:
            assert worker.replica.is_idle
            assert worker.estimate.num_own_requests == 0
            worker.replica.core.scheduler.check_integrity()


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000),
    num_requests=st.integers(1, 60),
    seconds=st.sampled_from([0.1, 2.0, 20.0]),
    sizes=st.tuples(st.integers(0, 3), st.integers(1, 3)),
    num_blocks=st.sampled_from([45, 60, 1000]),
    policy=st.sampled_from(["cost", "always_remote", "always_local", "least_loaded"]),
    max_queue_len=st.sampled_from([2, 4096]),
)
def test_every_request_ends_once_with_all_its_tokens(
    seed: int,
    num_requests: int,
    seconds: float,
    sizes: tuple[int, int],
    num_blocks: int,
    policy: str,
    max_queue_len: int,
) -> None:
    spec = replace(SPEC, num_blocks=num_blocks, max_queue_len=max_queue_len)
    prefill, decode = sizes
    plan = DeploymentPlan(
        machine=replace(MACHINE, spec=spec),
        prefill=prefill,
        decode=decode if prefill else 0,
        both=0 if prefill else decode,
    )
    twin = Twin(plan, requests_of(seed, num_requests, seconds), make_policy(policy, None))
    outcome = twin.run()
    check(outcome, twin, num_requests)
    if max_queue_len > num_requests:
        assert not [record.refusal for record in outcome.records if record.refusal is not None]


def test_a_prefix_is_pulled_from_the_worker_that_has_it() -> None:
    """Two prefill workers, one of which has the prefix and a long queue."""
    spec = replace(SPEC, num_blocks=1000, prefill_tokens_per_s=500.0)
    policy = CostPolicy(CostModel(min_source_blocks=1), local_prefill_below=0)
    plan = DeploymentPlan(machine=replace(MACHINE, spec=spec), prefill=3, decode=2)
    twin = Twin(plan, requests_of(3, 60, 5.0), policy)
    outcome = twin.run()
    check(outcome, twin, 60)
    assert all(record.is_remote for record in outcome.records)
    alone = Twin(plan, requests_of(3, 60, 5.0), CostPolicy(CostModel(min_source_blocks=1 << 30), 0)).run()
    assert outcome.cached_share > alone.cached_share


def test_workers_of_both_roles_prefill_and_decode_the_overflow() -> None:
    spec = replace(SPEC, num_blocks=1000, max_num_seqs=4)
    plan = DeploymentPlan(machine=replace(MACHINE, spec=spec), both=1, decode=1)
    assert plan.label == "1 of both roles + 1 decode"
    few, many = (Twin(plan, requests_of(3, 60, seconds), make_policy("always_remote", None)) for seconds in (60.0, 2.0))
    for twin in (few, many):
        outcome = twin.run()
        check(outcome, twin, 60)
        assert (twin is few) is all(record.is_remote for record in outcome.records)


def test_the_same_seed_gives_the_same_run() -> None:
    plan = DeploymentPlan(machine=MACHINE, prefill=2, decode=2, seed=7)
    requests = requests_of(1, 80, 4.0)
    first, second = simulate(plan, requests), simulate(plan, requests)
    assert first.records == second.records
    assert first.num_events == second.num_events
    other = simulate(replace(plan, seed=8), requests)
    assert other.records != first.records  # ties between plans are broken at random


def test_a_prompt_that_no_worker_can_hold_is_refused() -> None:
    plan = DeploymentPlan(machine=MACHINE, both=1)
    too_long = TraceRequest(1.0, SPEC.num_blocks * SPEC.block_size, 5, b"")
    outcome = simulate(plan, [TraceRequest(0.0, 100, 5, b""), too_long, TraceRequest(2.0, 100, 5, b"")])
    assert [record.refusal is None for record in outcome.records] == [True, False, True]
    assert outcome.num_good(SLO()) == 2


def test_a_deployment_without_decode_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="there must be prefill and decode workers"):
        Twin(DeploymentPlan(machine=MACHINE, prefill=2), [])


def test_preemptions_of_removed_replicas_are_counted() -> None:
    twin = Twin(DeploymentPlan(machine=MACHINE, prefill=1, decode=2), [])
    twin.decode.begin(2)
    for worker in twin.decode:
        worker.replica.core.scheduler.num_preemptions = 3
    twin.decode.scale(1)
    assert (len(twin.decode), twin.decode.num_preemptions) == (1, 6)


def test_a_draining_prefill_worker_ends_once_it_is_idle() -> None:
    """Requests that still wait at the decode worker find it gone, and their prompts are computed there."""
    spec = replace(SPEC, num_blocks=60)
    requests = [TraceRequest(0.0, 400, 200, b"") for _ in range(20)]
    plan = DeploymentPlan(machine=replace(MACHINE, spec=spec), prefill=2, decode=1)
    twin = Twin(plan, requests, make_policy("always_remote", None))
    left: list[tuple[int, int]] = []  # prefill workers, and requests that continue
    twin.clock.at(0.05, twin.prefill.scale, 1)
    for at_s in (0.05, 1.0):
        twin.clock.at(at_s, lambda: twin.prefill.collect())
        twin.clock.at(at_s, lambda: left.append((len(twin.prefill), 20 - twin._num_ended)))
    outcome = twin.run()
    check(outcome, twin, 20)
    assert left[0] == (2, 20)  # it is computing
    assert left[1][0] == 1
    assert left[1][1] > 10
    assert 0 < sum(record.is_remote for record in outcome.records) < 20


def test_tokens_are_counted_when_they_are_generated() -> None:
    twin = Twin(DeploymentPlan(machine=MACHINE, prefill=1, decode=1), [TraceRequest(0.0, 300, 500, b"")])
    counts: list[int] = []
    times_s = [0.5 * tick for tick in range(9)]
    for at_s in times_s:
        twin.clock.at(at_s, lambda: counts.append(twin.prefill.num_generated + twin.decode.num_generated))
    outcome = twin.run()
    (record,) = outcome.records
    assert twin.prefill.num_generated + twin.decode.num_generated == 500
    assert counts[0] == 0
    for at_s, count in zip(times_s[1:], counts[1:], strict=True):  # a block's sixteen steps are one event
        assert count == pytest.approx(1 + (at_s - record.first_s) / record.tpot_s, abs=3)
    twin.decode.begin(1)
    twin.decode.scale(1)
    assert (len(twin.decode), twin.prefill.num_generated + twin.decode.num_generated) == (1, 500)


def test_a_prompt_holds_kv_while_it_is_computed() -> None:
    twin = Twin(DeploymentPlan(machine=MACHINE, both=1), [TraceRequest(0.0, 400, 5, b"")])  # four steps
    held: list[int] = []
    twin.clock.at(0.02, lambda: held.extend(each.replica.num_held_tokens for each in twin.decode))
    twin.run()
    assert held == [400]


def test_a_prefill_worker_that_refuses_has_no_latency_samples() -> None:
    """Its queue is full, so the decode worker computes the prompt, and the time counts for that worker."""
    spec = replace(SPEC, max_num_seqs=1, max_queue_len=1)
    requests = [TraceRequest(0.0, 300, 5, b"") for _ in range(6)]
    plan = DeploymentPlan(machine=replace(MACHINE, spec=spec), prefill=1, decode=6)
    twin = Twin(plan, requests, make_policy("always_remote", None))
    outcome = twin.run()
    num_remote = sum(record.is_remote for record in outcome.answered)
    assert 0 < num_remote < len(outcome.answered)
    (worker,) = twin.prefill
    assert worker.latencies.latency(0.0, 0.0, 0.5).num_samples == num_remote


@pytest.mark.slow
@settings(max_examples=12)
@given(
    seed=st.integers(0, 1000),
    num_gpus=st.integers(2, 8),
    start_s=st.sampled_from([0.1, 1.0, 30.0]),
    bursts=st.integers(1, 4),
    flip_s=st.sampled_from([None, 0.05, 3.0]),
)
def test_gpus_are_never_over_budget(
    seed: int, num_gpus: int, start_s: float, bursts: int, flip_s: float | None
) -> None:
    """Bursts, pauses and short delays: replicas start, drain, return and change their role."""
    requests: list[TraceRequest] = []
    for burst in range(bursts):
        begins_s = 40.0 * burst
        requests += [
            replace(each, due_s=begins_s + each.due_s) for each in requests_of(seed + burst, 60 * (1 + burst % 2), 10.0)
        ]
    scaling = ScalingSettings(
        budget_gpus=num_gpus,
        slo=SLO(ttft_s=0.1, tpot_s=0.015),
        upscale_delay_s=1.0,
        downscale_delay_s=5.0,
        shift_delay_s=2.0,
        turn_s=10.0,
        start_s=start_s,
        drain_s=1.0,
        flip_s=flip_s,
    )
    plan = DeploymentPlan(machine=MACHINE, prefill=1, decode=1, scaling=scaling, start_s=start_s)
    twin = Twin(plan, requests)
    outcome = twin.run()
    check(outcome, twin, len(requests))
    assert outcome.most_gpus <= num_gpus
    assert all(sizes.gpus.prefill >= 1 and sizes.gpus.decode >= 1 for sizes in outcome.sizes)
    assert 0 < outcome.gpu_hours <= num_gpus * outcome.ended_s / 3600 * (1 + 1e-9)


def test_a_change_of_role_saves_a_start() -> None:
    """Long prompts, then long outputs, on all GPUs: without changes of role the decode pool waits for a start."""
    prompts = [TraceRequest(0.25 * number, 400, 2, b"") for number in range(240)]
    outputs = [TraceRequest(60.0 + 0.25 * number, 16, 200, b"") for number in range(240)]
    slo, outcomes = SLO(ttft_s=0.3, tpot_s=0.012), []
    for flip_s in (None, 0.1):
        scaling = ScalingSettings(
            budget_gpus=4,
            slo=slo,
            upscale_delay_s=1.0,
            shift_delay_s=2.0,
            turn_s=10.0,
            start_s=40.0,
            drain_s=1.0,
            flip_s=flip_s,
        )
        spec = replace(SPEC, num_blocks=1000, prefill_tokens_per_s=800.0)
        plan = DeploymentPlan(machine=Machine(spec=spec), prefill=3, decode=1, scaling=scaling, start_s=40.0)
        twin = Twin(plan, [*prompts, *outputs])
        outcomes.append(twin.run())
        check(outcomes[-1], twin, 480)
        assert outcomes[-1].most_gpus == 4
    started, flipped = outcomes
    ready_s = [next(each.since_s for each in outcome.sizes if each.ready.decode == 2) for outcome in outcomes]
    assert ready_s[0] - ready_s[1] > 40.0
    assert flipped.num_good(slo) > 2 * started.num_good(slo)


def test_simultaneous_requests_reach_a_worker_one_after_the_other() -> None:
    """The first is computed alone, as a worker does not wait for more; the others in the next step."""
    load = [TraceRequest(0.0, 40, 1, b"") for _ in range(3)]
    machine = Machine(spec=replace(SPEC, step_s=0.01), overhead_s=0.004)
    at_once = simulate(DeploymentPlan(machine=machine, both=1), load)
    assert len({record.first_s for record in at_once.records}) == 1
    spread = simulate(DeploymentPlan(machine=replace(machine, request_s=0.001), both=1), load)
    first, second, third = [record.first_s for record in spread.records]
    assert first < at_once.records[0].first_s
    assert second == third == pytest.approx(first + machine.spec.step_time_s(0, 80))
