"""The fit of step times, on profiles of a known machine."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from baton.loadtool.concurrency import Concurrency
from baton.loadtool.errors import DatasetError
from baton.loadtool.profile import ProfiledRequest, profile_file
from baton.router.policy.named_policies import make_policy
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.study.fit import fit_machine
from baton.simulation.study.profile_reader import read_profile
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.machine import Machine
from baton.simulation.twin.record import Record
from baton.simulation.twin.trace_request import TraceRequest
from baton.simulation.twin.twin import Twin
from tests.unit.simulation.trace_load import random_load

SPEC = WorkerSpec(
    num_blocks=8000, max_num_seqs=64, max_num_batched_tokens=2048, step_s=0.004, sequence_s=0.0006,
    prompts_step_s=0.003, prefill_tokens_per_s=9000.0, attended_s=5e-8, link_bytes_per_s=1e10,
)  # fmt: skip
MACHINE = Machine(spec=SPEC, overhead_s=0.006, handover_s=0.003, join_s=0.012)
# The times that the fit should find.
BLIND = replace(SPEC, step_s=1.0, sequence_s=1.0, prompts_step_s=1.0, prefill_tokens_per_s=1.0)


def profiled(records: list[Record], is_colocated: bool) -> list[ProfiledRequest]:
    """Return the profile that a client would have measured."""
    firsts = [record.first_s for record in records]
    prefilling = Concurrency([record.due_s for record in records], firsts)
    decoding = Concurrency(firsts, [record.last_s for record in records])
    return [
        ProfiledRequest(
            run=0,
            sent_s=record.due_s,
            prompt_tokens=record.num_prompt_tokens,
            cached_tokens=record.num_cached_tokens,
            uncached_tokens=record.num_prompt_tokens - record.num_cached_tokens,
            handed_over_tokens=record.num_prompt_tokens if record.is_remote else 0,
            output_tokens=record.num_output_tokens,
            ttft_s=record.ttft_s,
            tpot_s=record.tpot_s if record.num_output_tokens > 1 else None,
            prefilling_while_prefill=prefilling.mean(record.due_s, record.first_s),
            decoding_while_prefill=decoding.mean(record.due_s, record.first_s),
            prefilling_while_decode=prefilling.mean(record.first_s, record.last_s),
            decoding_while_decode=decoding.mean(record.first_s, record.last_s),
            prefill_worker="both-0" if is_colocated else "prefill-0" if record.is_remote else "decode-0",
            decode_worker="both-0" if is_colocated else "decode-0",
            kv_transport="",
        )
        for record in records
    ]


def measured(machine: Machine, *, seed: int, is_colocated: bool, below: int = 0) -> list[ProfiledRequest]:
    # Tokens cached at the decode worker are not handed over, which a record does not show: so hardly any are cached.
    num_prefixes = 4 if is_colocated else 500
    asked = random_load(seed, 250, seconds=60.0, max_prompt=1500, max_output=80, num_prefixes=num_prefixes)
    load = [each.request for each in asked]
    sizes = {"both": 1} if is_colocated else {"prefill": 1, "decode": 1}
    twin = Twin(DeploymentPlan(machine=machine, **sizes), load, make_policy("cost", below))
    return profiled(list(twin.run().records), is_colocated)


@pytest.mark.parametrize("is_colocated", [False, True], ids=["disaggregated", "colocated"])
def test_a_known_machine_is_found(is_colocated: bool) -> None:
    fit = fit_machine(measured(MACHINE, seed=1, is_colocated=is_colocated, below=200), BLIND)
    spec = fit.machine.spec
    assert spec.prefill_tokens_per_s == pytest.approx(SPEC.prefill_tokens_per_s, rel=0.1)
    assert spec.attended_s == pytest.approx(SPEC.attended_s, rel=0.25)
    if not is_colocated:
        assert spec.link_bytes_per_s == pytest.approx(SPEC.link_bytes_per_s, rel=0.4)
    assert spec.step_s == pytest.approx(SPEC.step_s, rel=0.1)
    assert spec.sequence_s == pytest.approx(SPEC.sequence_s, rel=0.2)
    assert spec.prompts_step_s == pytest.approx(SPEC.prompts_step_s, abs=0.002)
    assert fit.tpot_error < 0.03
    assert fit.ttft_error < 0.06
    way_s = MACHINE.overhead_s if is_colocated else MACHINE.overhead_s + MACHINE.handover_s
    assert fit.machine.overhead_s + fit.machine.handover_s == pytest.approx(way_s, abs=0.004)
    assert fit.machine.join_s == pytest.approx(0.0 if is_colocated else MACHINE.join_s, abs=0.004)


def test_the_fitted_machine_predicts_another_load() -> None:
    """With a load twice as dense, TTFT is within 5% and TPOT within 8%."""
    fit = fit_machine(measured(MACHINE, seed=1, is_colocated=False), BLIND)
    load = [each.request for each in random_load(2, 250, seconds=30.0, max_prompt=1500, max_output=80)]
    plan = DeploymentPlan(machine=MACHINE, prefill=1, decode=1)
    real, predicted = (
        Twin(replace(plan, machine=machine), load, make_policy("always_remote", None)).run()
        for machine in (MACHINE, fit.machine)
    )
    assert real.ttft_ms is not None
    assert predicted.ttft_ms is not None
    assert real.tpot_ms is not None
    assert predicted.tpot_ms is not None
    for of_real, of_predicted, rel in (
        (real.ttft_ms, predicted.ttft_ms, 0.05),
        (real.tpot_ms, predicted.tpot_ms, 0.08),
    ):
        assert (of_predicted.p50, of_predicted.p90) == pytest.approx((of_real.p50, of_real.p90), rel=rel)


def in_bursts(num_bursts: int) -> list[TraceRequest]:
    """Return bursts: one prompt, then several short ones that arrive while it is computed and share a step."""
    rng, requests = random.Random(0), []
    for burst in range(num_bursts):
        sizes = [rng.randint(50, 500) for _ in range(rng.randint(1, 5))]
        requests += [TraceRequest(3.0 * burst + 0.001 * (place > 0), size, 5, b"") for place, size in enumerate(sizes)]
    return requests


def test_prompts_of_a_burst_are_predicted_by_their_position() -> None:
    """The first of a burst takes the network's time and a step, the others only their step."""
    plan = DeploymentPlan(machine=replace(MACHINE, request_s=0.0005), prefill=1, decode=1)
    policy, load = make_policy("always_remote", None), in_bursts(20)
    records = list(Twin(plan, load, policy).run().records)
    fit = fit_machine(profiled(records, is_colocated=False), BLIND)
    again = Twin(replace(plan, machine=fit.machine), load, policy).run().records
    assert [each.ttft_s for each in again] == pytest.approx([each.ttft_s for each in records], rel=0.05)
    assert fit.machine.spec.prefill_tokens_per_s == pytest.approx(SPEC.prefill_tokens_per_s, rel=0.05)


def test_outliers_do_not_slow_the_fit() -> None:
    """One in ten took three times as long, as if another program used the machine."""
    requests = measured(MACHINE, seed=1, is_colocated=False)
    held_up = [
        replace(each, ttft_s=each.ttft_s * 3, tpot_s=each.tpot_s * 3 if each.tpot_s is not None else None)
        if place % 10 == 0
        else each
        for place, each in enumerate(requests)
    ]
    fit, disturbed = fit_machine(requests, BLIND), fit_machine(held_up, BLIND)
    for name in ("step_s", "prefill_tokens_per_s", "attended_s"):
        assert getattr(disturbed.machine.spec, name) == pytest.approx(getattr(fit.machine.spec, name), rel=0.25)


def test_noise_does_not_make_times_negative() -> None:
    rng = random.Random(0)
    noisy = [
        replace(each, ttft_s=each.ttft_s * rng.uniform(0.5, 2), tpot_s=0.005 if each.tpot_s is not None else None)
        for each in measured(MACHINE, seed=3, is_colocated=False)
    ]
    machine = fit_machine(noisy, SPEC).machine
    assert machine.spec.step_s >= 0
    assert machine.spec.sequence_s >= 0
    assert machine.overhead_s >= 0
    assert machine.handover_s >= 0
    machine.spec.check()


def test_too_few_requests_are_refused(tmp_path: Path) -> None:
    requests = measured(MACHINE, seed=1, is_colocated=False)
    with pytest.raises(DatasetError, match="8 or more"):
        fit_machine(requests[:7], SPEC)
    with pytest.raises(DatasetError, match="more than one output token"):
        fit_machine([replace(each, tpot_s=None) for each in requests], SPEC)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_file(requests, "model", "url", "now")))
    assert read_profile(path) == requests
    for content in ("nonsense", "[]", '{"format": "another"}', json.dumps(profile_file([], "model", "url", "now"))):
        path.write_text(content)
        with pytest.raises(DatasetError, match=str(path)):
            read_profile(path)
    with pytest.raises(DatasetError, match="No such file"):
        read_profile(tmp_path / "none.json")
