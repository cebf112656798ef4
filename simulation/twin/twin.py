"""A deployment's discrete-event twin: the real router, scheduler and autoscaler under a trace, in virtual time.

1. The trace's requests arrive at their times (`journey` is the life of each).
2. `router` chooses a plan by the real policy, from the load reports of all workers.
3. `replica` runs the real scheduler; its steps take the times of the machine's spec.
4. `autoscaler` decides every second, if there is one, and `pool` starts and drains replicas.
5. When every request has ended, the outcome has their times and the cost.
"""

import time
from collections.abc import Sequence

from baton.deployment.autoscaling.by_pool import ByPool
from baton.router.policy.cluster import WorkerRole
from baton.router.policy.cost_model import CostModel
from baton.router.policy.policy import CostPolicy, Policy
from baton.simulation.twin.autoscaler import Autoscaler
from baton.simulation.twin.clock import Clock
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.gpu_meter import GpuMeter, Sizes
from baton.simulation.twin.journey import Journey, Stage
from baton.simulation.twin.outcome import Outcome
from baton.simulation.twin.pool import Pool
from baton.simulation.twin.record import Record
from baton.simulation.twin.router import TwinRouter
from baton.simulation.twin.trace_request import TraceRequest
from baton.simulation.twin.traffic_window import TrafficWindow


class Twin:
    """One run of a deployment."""

    def __init__(self, plan: DeploymentPlan, requests: Sequence[TraceRequest], policy: Policy | None = None) -> None:
        """Prepare a run. policy: replaces the router's default. Raises ValueError for an impossible plan."""
        plan.machine.spec.check()
        if (plan.both and plan.prefill) or (not plan.both and not (plan.prefill and plan.decode)):
            raise ValueError(f"{plan.label}: there must be prefill and decode workers, or colocated ones")
        self.clock = Clock()
        policy = policy or CostPolicy(CostModel(targets=plan.targets))
        self.router = TwinRouter(self.clock, policy, plan.machine.spec.block_size, plan.seed)
        self._plan = plan
        self._requests = requests
        self._meter = GpuMeter()
        self._stage = Stage(self.clock, plan.machine, self.router, TrafficWindow(), self._note_end)
        self.prefill = self._pool(WorkerRole.BOTH if plan.is_mixed else WorkerRole.PREFILL)
        self.decode = self._pool(WorkerRole.DECODE if plan.decode else WorkerRole.BOTH)
        self._records: list[Record] = []
        self._num_ended = 0
        self._autoscaler: Autoscaler | None = None
        if plan.scaling is not None:
            self._autoscaler = Autoscaler(
                self.clock, plan.scaling, plan.machine, self.prefill, self.decode, self._stage.traffic, self._is_over
            )

    def run(self) -> Outcome:
        """Run the whole trace and return the outcome; to be called once."""
        started_s = time.process_time()
        self.prefill.begin(self._plan.both if self._plan.is_mixed else self._plan.prefill)
        self.decode.begin(self._plan.decode or self._plan.both)
        self._arrive(0)
        if self._autoscaler is not None:
            self._autoscaler.decide()
        self.clock.run()
        ended_s = max((record.last_s for record in self._records), default=0.0)
        return Outcome(
            plan=self._plan,
            records=self._records,
            sizes=self._meter.history,
            gpu_hours=self._meter.gpu_hours(ended_s),
            most_gpus=self._meter.most_gpus,
            ended_s=ended_s,
            num_preemptions=self.prefill.num_preemptions + self.decode.num_preemptions,
            num_events=self.clock.num_events,
            cpu_s=time.process_time() - started_s,
            decisions=self._decisions(),
        )

    def _arrive(self, place: int) -> None:
        """Begin the requests from `place` of the trace on that are due, and schedule the next arrival."""
        while place < len(self._requests) and self._requests[place].due_s <= self.clock.now_s:
            journey = Journey(self._stage, self._requests[place])
            self._records.append(journey.record)
            journey.begin()
            place += 1
        if place < len(self._requests):
            self.clock.at(self._requests[place].due_s, self._arrive, place)

    def _is_over(self) -> bool:
        return self._num_ended == len(self._requests)

    def _note_end(self) -> None:
        self._num_ended += 1

    def _pool(self, role: WorkerRole) -> Pool:
        plan = self._plan
        return Pool(role, self.clock, plan.machine, self.router, plan.start_s, self._note_sizes)

    def _note_sizes(self) -> None:
        pools = ByPool(self.prefill, self.decode)
        self._meter.note(Sizes(self.clock.now_s, pools.map(lambda pool: len(pool.ready)), pools.map(len)))

    def _decisions(self) -> list[str]:
        decisions = self._autoscaler.decisions if self._autoscaler is not None else []
        return [f"{now_s:.0f} s: {decision.reason}" for now_s, decision in decisions]


def simulate(plan: DeploymentPlan, requests: Sequence[TraceRequest]) -> Outcome:
    """Run a deployment with a trace, and return the outcome."""
    return Twin(plan, requests).run()
