"""An oracle to compare planners with: the smallest sizes that suffice, if the rate of each moment is known.

Without start times it is a bound: no planner needs fewer GPUs. With start times it is none: a planner with larger pools
serves more requests while replicas start.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import mean

from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.prediction.pools_model import PoolsModel
from baton.deployment.autoscaling.prompt_split import SHARES
from baton.deployment.autoscaling.settings import SLO, ScalingSettings
from baton.deployment.autoscaling.snapshot import DecodeSnapshot, PoolSnapshot, PoolsSnapshot, PrefillSnapshot, Traffic
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.outcome import Outcome
from baton.simulation.twin.trace_request import TraceRequest
from baton.simulation.twin.twin import Twin
from benchmarks.planner.traffic import Lengths, Workload

NUM_MOMENTS = 240  # at which the rate is looked up
ONE = PoolSnapshot(num_ready=1)


def oracle_gpus(workload: Workload, spec: WorkerSpec, slo: SLO, budget_gpus: int) -> float:
    """Return the average number of GPUs that the planner's own model needs for the SLO, without margin or delay."""
    return mean(sum(sizes.both()) for sizes in oracle_sizes(workload, spec, slo, budget_gpus))


def oracle_run(
    plan: DeploymentPlan,
    workload: Workload,
    requests: Sequence[TraceRequest],
    slo: SLO,
    budget_gpus: int,
) -> Outcome:
    """Simulate pools that change to the oracle's sizes as soon as the rate changes; replicas take `plan.start_s`."""
    step_s = workload.seconds / NUM_MOMENTS
    sizes = oracle_sizes(workload, plan.machine.spec, slo, budget_gpus)
    twin = Twin(replace(plan, prefill=sizes[0].prefill, decode=sizes[0].decode, scaling=None), requests)
    for place, (before, after) in enumerate(pairwise(sizes), start=1):
        if after != before:
            twin.clock.at(place * step_s, twin.prefill.scale, after.prefill)
            twin.clock.at(place * step_s, twin.decode.scale, after.decode)
    for second in range(int(workload.seconds)):  # replicas that have drained leave
        twin.clock.at(second, twin.prefill.collect)
        twin.clock.at(second, twin.decode.collect)
    return twin.run()


def oracle_sizes(workload: Workload, spec: WorkerSpec, slo: SLO, budget_gpus: int) -> list[ByPool[int]]:
    """Return the sizes with the fewest GPUs in each of `NUM_MOMENTS` equal parts of the time."""
    settings = ScalingSettings(budget_gpus=budget_gpus, slo=slo)
    step_s = workload.seconds / NUM_MOMENTS
    rates = [workload.rate((place + 0.5) * step_s) for place in range(NUM_MOMENTS)]
    return [_smallest(_snapshot(workload, spec, rate), settings) for rate in rates]


def _smallest(snapshot: PoolsSnapshot, settings: ScalingSettings) -> ByPool[int]:
    """Return the sizes for the best share of prompts that decode workers compute."""
    budget, rate = Budget(settings.budget_gpus, settings.limits), snapshot.traffic.requests_per_s
    models = [PoolsModel.of(snapshot, settings, ByPool(1.0, 1.0), share) for share in SHARES]
    return min((model.sizes(rate, budget) for model in models), key=budget.cost)


def _snapshot(workload: Workload, spec: WorkerSpec, rate: float) -> PoolsSnapshot:
    prompts = _moments(workload.prompt)
    return PoolsSnapshot(
        now_s=0.0,
        traffic=Traffic(
            requests_per_s=rate, prompt_tokens=prompts, uncached_tokens=prompts, output_tokens=_moments(workload.output)
        ),
        prefill=PrefillSnapshot(
            pool=ONE,
            tokens_per_s=spec.prefill_tokens_per_s,
            step_s=spec.step_s,
            max_step_tokens=spec.max_num_batched_tokens,
        ),
        decode=DecodeSnapshot(
            pool=ONE,
            step_s=spec.step_s + spec.sequence_s,
            sequence_s=spec.sequence_s,
            max_num_seqs=spec.max_num_seqs,
            kv_tokens=(spec.num_blocks - 1) * spec.block_size,
        ),
    )


def _moments(lengths: Lengths) -> Moments:
    return Moments(lengths.mean, lengths.mean * lengths.mean * (1 + lengths.cv * lengths.cv))
