"""Routing policies by name: by price, and baselines to compare it with."""

from dataclasses import dataclass, field, replace
from heapq import nsmallest

from baton.router.policy.cluster import (
    Candidates,
    ClusterSnapshot,
    Plan,
    RoutedRequest,
    WorkerSnapshot,
    find_candidates,
)
from baton.router.policy.cost_model import CostModel
from baton.router.policy.policy import MAX_FALLBACKS, CostPolicy, Policy, choose
from baton.router.policy.targets import Targets
from baton.router.request_context import HintedPlan


@dataclass(frozen=True, slots=True)
class AlwaysLocalPolicy:
    """The cheapest plan without a prefill worker, unless the request's hints name one."""

    model: CostModel = field(default_factory=CostModel)

    def __call__(self, request: RoutedRequest, cluster: ClusterSnapshot) -> Plan:
        """Return the plan; see `CostPolicy`."""
        hints = request.hints
        if hints.prefill_worker is None and hints.plan is None:
            request = replace(request, hints=replace(hints, plan="local"))
        return choose(request, cluster, self.model)


@dataclass(frozen=True, slots=True)
class RoundRobinPolicy:
    """Each worker in turn, whatever it has cached or queued."""

    local_prefill_below: int | None  # in tokens; None: always a prefill worker, if there is one

    def __call__(self, request: RoutedRequest, cluster: ClusterSnapshot) -> Plan:
        """Return the plan; see `CostPolicy`."""
        candidates = find_candidates(request, cluster)
        decode = _in_turn(candidates.decoders, cluster.turn)
        prefillers = candidates.prefillers_for(decode)
        reason = local_reason(request, candidates, decode, self.local_prefill_below)
        if reason is not None:
            return Plan(decode, None, None, reason)
        prefill = _in_turn(prefillers, cluster.turn // len(candidates.decoders))
        return Plan(decode, prefill, None, f"turn {cluster.turn}", _others(prefillers, prefill))


@dataclass(frozen=True, slots=True)
class LeastLoadedPolicy:
    """The least loaded workers, whatever they have cached."""

    local_prefill_below: int | None  # in tokens

    def __call__(self, request: RoutedRequest, cluster: ClusterSnapshot) -> Plan:
        """Return the plan; see `CostPolicy`."""
        candidates = find_candidates(request, cluster)
        decode = min(candidates.decoders, key=_load)
        reason = local_reason(request, candidates, decode, self.local_prefill_below)
        if reason is not None:
            return Plan(decode, None, None, reason)
        prefillers = candidates.prefillers_for(decode)
        prefill = min(prefillers, key=_load)
        reason = f"{decode.num_requests} and {prefill.num_requests} requests"
        return Plan(decode, prefill, None, reason, _others(prefillers, prefill))


def make_policy(name: str, local_prefill_below: int | None, targets: Targets | None = None) -> Policy:
    """Return the policy of this name, with these latency targets. Raises ValueError for an unknown name."""
    model = CostModel(targets=targets)
    policies: dict[str, Policy] = {
        "cost": CostPolicy(model, local_prefill_below),
        "round_robin": RoundRobinPolicy(local_prefill_below),
        "least_loaded": LeastLoadedPolicy(local_prefill_below),
        "always_remote": CostPolicy(model, local_prefill_below=0),
        "always_local": AlwaysLocalPolicy(model),
    }
    if name not in policies:
        raise ValueError(f"policy is {name!r}, but must be one of {', '.join(policies)}")
    return policies[name]


def local_reason(
    request: RoutedRequest, candidates: Candidates, decode: WorkerSnapshot, local_prefill_below: int | None
) -> str | None:
    """Return why the decode worker computes the prompt itself; None if a prefill worker does."""
    hint: HintedPlan | None = candidates.plan
    if hint == "local":
        return "the request asks for a local plan"
    if not candidates.prefillers_for(decode):
        return "no prefill worker can prefill for it"
    missing = request.missing_tokens(decode)
    if hint is None and missing < (local_prefill_below or 0):
        return f"only {missing} tokens uncached, below {local_prefill_below}"
    return None


def _others(prefillers: list[WorkerSnapshot], chosen: WorkerSnapshot) -> tuple[WorkerSnapshot, ...]:
    """Return the least loaded prefill workers as fallbacks for the chosen one."""
    return tuple(nsmallest(MAX_FALLBACKS, (each for each in prefillers if each is not chosen), key=_load))


def _in_turn(workers: list[WorkerSnapshot], turn: int) -> WorkerSnapshot:
    return sorted(workers, key=lambda worker: worker.worker_id)[turn % len(workers)]


def _load(worker: WorkerSnapshot) -> tuple[int, int, str]:
    return worker.num_queued_tokens, worker.num_requests, worker.worker_id
