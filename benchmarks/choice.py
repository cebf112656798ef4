"""The router's choice of where a prompt is computed, in random situations of the twin.

    python -m benchmarks.choice [--situations N] [--first SEED] [--default-targets] [--json FILE]

A situation is drawn by lot: the workers and how they are divided, the lengths, what prompts share, and the rate.
Three deployments of the same workers serve the same requests:

- colocated: every worker computes prompts and decodes
- always remote: prefill workers compute all prompts
- priced: colocated workers in place of the prefill workers, and the router's prices decide

`of the better` is the goodput of the priced deployment, relative to the better of the two others. Situations in which
the better one has fewer than three good answers in ten are left out: they are overloaded, or no deployment can meet
the limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from random import Random
from statistics import geometric_mean

import click

from baton.deployment.autoscaling.settings import SLO
from baton.router.policy.cost_model import CostModel
from baton.router.policy.policy import CostPolicy
from baton.router.policy.targets import DEFAULT_TARGETS, Targets
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.machine import Machine
from baton.simulation.twin.outcome import Outcome
from baton.simulation.twin.trace_request import TraceRequest
from baton.simulation.twin.twin import Twin
from benchmarks.planner.traffic import Lengths, Workload, bursts, steady
from benchmarks.report import Report

BLOCK_SIZE = 64  # larger blocks are faster to simulate
NUM_REQUESTS = 1000
LEAST_GOOD = 0.3  # of the offered requests, in the better of the two fixed choices
WARM_SHARE = 0.1  # of the requests, which find no cache yet and are not counted
SPECS = (
    WorkerSpec(),
    WorkerSpec(step_s=0.020, sequence_s=0.0003, prefill_tokens_per_s=8000.0, num_blocks=16384),
    WorkerSpec(step_s=0.012, sequence_s=0.0005, prefill_tokens_per_s=12_000.0, attended_s=2e-9, num_blocks=8192),
)
COLUMNS = (
    "situation",
    "workers",
    "prompt / output",
    "turns",
    "rate/s",
    "colocated/s",
    "always remote/s",
    "priced/s",
    "of the better",
    "remote %",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Workers and traffic."""

    prefill: int  # workers that are colocated if prices decide
    decode: int
    machine: Machine
    workload: Workload
    mean_rate: float
    slo: SLO

    @classmethod
    def draw(cls, seed: int) -> "Situation":
        """Draw a situation by lot: from an idle deployment to an overloaded one."""
        random = Random(seed)
        num_workers = random.randint(2, 8)
        prefill = random.randint(1, num_workers - 1)
        spec = random.choice(SPECS)
        prompt, output = _log_uniform(random, 100, 8000), _log_uniform(random, 10, 600)
        num_turns = random.choice((1.0, 1.0, 2.0, 5.0))
        shared = random.choice((0, 0, 640, 2560))
        slo = SLO(ttft_s=max(1.0, 4 * prompt / spec.prefill_tokens_per_s), tpot_s=2.5 * spec.step_s)
        decode_s = (spec.step_s / 40 + spec.sequence_s) * output  # of a worker with some 40 sequences
        capacity = num_workers / (prompt / spec.prefill_tokens_per_s + decode_s)
        rate = capacity * random.uniform(0.2, 1.2)
        seconds = NUM_REQUESTS / rate
        varying = bursts(0.5 * rate, 1.5 * rate, seconds / 4) if random.random() < 0.3 else steady(rate)
        workload = Workload(
            seconds=seconds,
            rate=varying,
            prompt=Lengths(prompt, random.uniform(0.2, 1.5)),
            output=Lengths(output, random.uniform(0.2, 1.2)),
            num_turns=num_turns,
            pause_s=min(20.0, seconds / 10),
            num_shared_tokens=shared,
        )
        return cls(
            prefill=prefill,
            decode=num_workers - prefill,
            machine=Machine(spec=spec, handover_s=0.003).with_block_size(BLOCK_SIZE),
            workload=workload,
            mean_rate=rate,
            slo=slo,
        )

    def plans(self) -> dict[str, tuple[DeploymentPlan, int | None]]:
        """Return the deployments, each with the tokens below which decode workers compute a prompt; None: by price."""
        return {
            "colocated": (DeploymentPlan(machine=self.machine, both=self.prefill + self.decode), None),
            "always remote": (DeploymentPlan(machine=self.machine, prefill=self.prefill, decode=self.decode), 0),
            "priced": (DeploymentPlan(machine=self.machine, both=self.prefill, decode=self.decode), None),
        }


def goodput(outcome: Outcome, requests: Sequence[TraceRequest], slo: SLO) -> float:
    """Return the requests per second within the SLO, after the first tenth."""
    since_s = requests[int(WARM_SHARE * len(requests))].due_s
    seconds = requests[-1].due_s - since_s
    return sum(record.is_good(slo) for record in outcome.records if record.due_s >= since_s) / seconds


def compare(seed: int, report: Report, *, knows_limits: bool) -> float | None:
    """Add a situation's row. Returns the goodput of the priced deployment, relative to the better of the others.

    knows_limits: the router's targets are the situation's limits, otherwise its defaults. Returns None, and adds
    nothing, if the situation is left out.
    """
    situation = Situation.draw(seed)
    requests = situation.workload.requests(seed, BLOCK_SIZE)
    targets = Targets(situation.slo.ttft_s, situation.slo.tpot_s) if knows_limits else DEFAULT_TARGETS
    goodputs: dict[str, float] = {}
    for name, (plan, below) in situation.plans().items():
        if name == "priced" and max(goodputs.values()) < LEAST_GOOD * situation.mean_rate:
            return None
        outcome = Twin(plan, requests, CostPolicy(CostModel(targets=targets), below)).run()
        goodputs[name] = goodput(outcome, requests, situation.slo)
    ratio = goodputs["priced"] / max(goodputs["colocated"], goodputs["always remote"])
    workload = situation.workload
    report.add(
        seed,
        f"{situation.prefill} + {situation.decode}",
        f"{workload.prompt.mean:.0f} / {workload.output.mean:.0f}",
        workload.num_turns,
        situation.mean_rate,
        *goodputs.values(),
        ratio,
        100 * outcome.remote_share,  # of the priced deployment, the last
    )
    print(*(f"{cell:.3g}" if isinstance(cell, float) else cell for cell in report.rows[-1]), sep="  ", flush=True)
    return ratio


@click.command(help=__doc__)
@click.option("--situations", type=click.IntRange(1), default=40, show_default=True)
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="Number of the first situation.")
@click.option("--default-targets", is_flag=True, help="The router does not know the limits, and has its defaults.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path))
def main(situations: int, first: int, default_targets: bool, json_file: Path | None) -> None:
    """Compare the deployments, and print the table."""
    report = Report("The router's prices compared with fixed choices", COLUMNS)
    ratios: list[float] = []
    seed = first
    while len(ratios) < situations:
        ratio = compare(seed, report, knows_limits=not default_targets)
        ratios += [] if ratio is None else [ratio]
        seed += 1
    report.notes.append(f"of {seed - first} situations, {seed - first - situations} were left out")
    report.notes.append(f"lowest: {min(ratios):.3f}; below 0.98: {sum(ratio < 0.98 for ratio in ratios)}")
    report.notes.append(f"geometric mean: {geometric_mean(ratios):.3f}")
    report.show()
    if json_file is not None:
        report.write(json_file)


def _log_uniform(random: Random, low: float, high: float) -> float:
    return exp(random.uniform(log(low), log(high)))


if __name__ == "__main__":
    main()
