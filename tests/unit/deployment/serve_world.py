"""Two deployments of Ray Serve and their workers, which follow a policy's targets and change their roles."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import Random
from typing import Any

from baton.deployment.autoscaling.settings import PoolLimits, ScalingSettings
from baton.deployment.ray.observed_pools import ObservedPools
from baton.deployment.ray.pools_observer import Observation
from baton.deployment.ray.role_changes import ChangeFailed
from baton.membership.registry.router_report import RouterReport, WorkerReport
from baton.settings.names import Role
from tests.unit.deployment.serve_contexts import FakeContext, FakeKey, by_name
from tests.unit.membership.registry.router_reports import router_report, sums, traffic_report, worker_report

DEPLOYMENTS: tuple[Role, Role] = ("prefill", "decode")
STEP_S = 1.0


@dataclass
class FakeWorker:
    """A replica's worker."""

    name: str
    deployment: Role
    role: Role
    age: int = -1  # steps since it became ready; below 0: it is starting
    life: int = 1
    num_running: int = 0
    change: tuple[Role, "Future[None]"] | None = None

    @property
    def address(self) -> str:
        return f"{self.name}:7000"

    @property
    def is_serving(self) -> bool:
        """Whether it accepts requests."""
        return self.age >= 0 and self.change is None

    def report(self) -> WorkerReport:
        return worker_report(
            self.name, self.role, incarnation=f"{self.name}/{self.life}", draining=self.change is not None,
            initial_role=self.deployment, address=self.address, num_running=self.num_running,
        )  # fmt: skip


@dataclass
class ServeWorld:
    """Serve, its replicas, and the observer of a policy."""

    settings: ScalingSettings
    bounds: tuple[int, int] = (1, 8)  # of each deployment
    random: Random = field(default_factory=lambda: Random(1))
    fails: bool = False  # changes of role
    latest: Observation | None = None
    error: str = "nothing was observed"
    now_s: float = 1e9  # in the future, so that it is never stale
    num_named: int = 0
    num_started: int = 0
    num_changed: int = 0
    hidden: set[str] = field(default_factory=set)  # workers that no router reaches
    workers: list[FakeWorker] = field(default_factory=list)
    targets: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[str, Role]] = field(default_factory=list)

    def begin(self, prefill: int, decode: int) -> None:
        """Start the deployments with replicas that are ready."""
        self.targets = {"prefill": prefill, "decode": decode}
        for deployment in DEPLOYMENTS:
            for _ in range(self.targets[deployment]):
                self._start(deployment, age=0)
        self.num_started = 0

    def limit(self, prefill: int, decode: int) -> None:
        """Have the planner want these sizes of the pools."""
        values = {"prefill": PoolLimits(min_replicas=prefill, max_replicas=prefill)}
        values["decode"] = PoolLimits(min_replicas=decode, max_replicas=decode)
        self.settings = ScalingSettings(**{**_values(self.settings), **values})

    def start(self) -> None:
        """Start no thread."""

    def stop(self) -> None:
        """Stop no thread."""

    def submit(self, call: tuple[str, Role]) -> "Future[None]":
        """Begin a change of role at an address, as `call` of `replaced_call` says."""
        address, role = call
        [worker] = [each for each in self.workers if each.address == address]
        others = [each for each in self.workers if each.role == worker.role and each.is_serving and each is not worker]
        assert worker.is_serving
        assert others, f"{worker.name} is the last one of its role"
        result: Future[None] = Future()
        worker.change = (role, result)
        self.calls.append(call)
        return result

    def step(self, policy: Callable[..., Any], num: int = 1) -> None:
        """Plan this many times, a second apart, and carry the targets out."""
        for _ in range(num):
            self.now_s += STEP_S
            self.latest = Observation(self.now_s, ObservedPools.of([self.report()]), self.settings)
            least, most = self.bounds
            found = policy({FakeKey(name): FakeContext(self.targets[name], least, most) for name in DEPLOYMENTS})[0]
            self.targets = {name: min(max(size, least), most) for name, size in by_name(found).items()} or self.targets
            self._end_changes()
            self._scale()

    def report(self) -> RouterReport:
        """Return the report of a router that reaches all ready workers that are not hidden."""
        num = 60
        traffic = traffic_report(num, uncached_tokens=sums(100.0, num), prompt_tokens=sums(100.0, num))
        ready = [each for each in self.workers if each.age >= 0 and each.name not in self.hidden]
        return router_report(*(each.report() for each in ready), traffic=traffic)

    @property
    def sizes(self) -> tuple[int, int]:
        """Ready workers of each role that accept requests."""
        roles = [each.role for each in self.workers if each.is_serving]
        return roles.count("prefill"), roles.count("decode")

    def _start(self, deployment: Role, age: int) -> None:
        self.num_started += 1
        self.num_named += 1
        self.workers.append(FakeWorker(f"{deployment}-{self.num_named}", deployment, deployment, age))

    def _scale(self) -> None:
        for deployment in DEPLOYMENTS:
            own = [each for each in self.workers if each.deployment == deployment]
            for worker in own:
                worker.age += 1
            for _ in range(self.targets[deployment] - len(own)):
                self._start(deployment, age=-5)
            self.random.shuffle(own)
            for worker in sorted(own, key=lambda each: each.age >= 0)[: max(0, len(own) - self.targets[deployment])]:
                self.workers.remove(worker)
                if worker.change is not None:
                    worker.change[1].set_exception(ChangeFailed("the worker is shutting down"))

    def _end_changes(self) -> None:
        for worker in self.workers:
            if worker.change is None or self.random.random() < 0.5:
                continue
            (role, result), worker.change = worker.change, None
            if self.fails:
                result.set_exception(ChangeFailed("FAILED_PRECONDITION: not today"))
            else:
                worker.role, worker.life = role, worker.life + 1
                self.num_changed += 1
                result.set_result(None)


def replaced_call(_tls: object, address: str, role: Role, _timeout_s: float) -> tuple[str, Role]:
    """Return what `ServeWorld.submit` needs, in place of `change_role`."""
    return address, role


def _values(settings: ScalingSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in ScalingSettings.__dataclass_fields__}
