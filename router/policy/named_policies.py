"""The policies by their names: by price, and others to compare it with."""

from dataclasses import dataclass, field, replace
from heapq import nsmallest

from baton.router.policy.candidates import Candidates, find_candidates
from baton.router.policy.cluster import ClusterSnapshot, Plan, RoutedRequest, WorkerSnapshot
from baton.router.policy.cost_model import CostModel
from baton.router.policy.policy import MAX_FALLBACKS, Policy, choose
from baton.router.policy.targets import Targets
from baton.router.request_context import HintedPlan


@dataclass(frozen=True, slots=True)
class CostPolicy:
    """The cheapest plan; `plan`: only of this kind, where a request's hints and the workers that are there allow it."""

    model: CostModel = field(default_factory=CostModel)
    local_prefill_below: int | None = None  # decides without prices who computes the prompt; None: the cheaper one

    def __call__(self, request: RoutedRequest, cluster: ClusterSnapshot) -> Plan:
        """The plan. Raises NoWorker if no worker can decode, ImpossiblePlan for hints that cannot be followed."""
        return choose(request, cluster, self.model, self.local_prefill_below)


@dataclass(frozen=True, slots=True)
class AlwaysLocalPolicy:
    """The cheapest plan without a prefill worker; one that a request's hints name is taken all the same."""

    model: CostModel = field(default_factory=CostModel)

    def __call__(self, request: RoutedRequest, cluster: ClusterSnapshot) -> Plan:
        """As above."""
        hints = request.hints
        if hints.prefill_worker is None and hints.plan is None:
            request = replace(request, hints=replace(hints, plan="local"))
        return choose(request, cluster, self.model)


@dataclass(frozen=True, slots=True)
class RoundRobinPolicy:
    """Each in turn, whatever they have cached or to do."""

    local_prefill_below: int | None  # as above; None: a prefill worker always, if there is one

    def __call__(self, request: RoutedRequest, cluster: ClusterSnapshot) -> Plan:
        """As above."""
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
    """Who has least to do, whatever they have cached."""

    local_prefill_below: int | None  # as above

    def __call__(self, request: RoutedRequest, cluster: ClusterSnapshot) -> Plan:
        """As above."""
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
    """The policy of this name; `targets`: what requests are promised. Raises ValueError if there is none."""
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
    """Why the decode worker prefills itself; None if it does not."""
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
    """Who is asked in turn if the chosen prefill worker fails: those with least to do."""
    return tuple(nsmallest(MAX_FALLBACKS, (each for each in prefillers if each is not chosen), key=_load))


def _in_turn(workers: list[WorkerSnapshot], turn: int) -> WorkerSnapshot:
    return sorted(workers, key=lambda worker: worker.worker_id)[turn % len(workers)]


def _load(worker: WorkerSnapshot) -> tuple[int, int, str]:
    return worker.num_queued_tokens, worker.num_requests, worker.worker_id
