"""Workers that can serve a request: those that fit its length and its hints."""

from dataclasses import dataclass

from baton.engine.errors import InvalidRequest
from baton.router.errors import NoWorker
from baton.router.policy.cluster import ClusterSnapshot, RoutedRequest, WorkerRole, WorkerSnapshot
from baton.router.request_context import HintedPlan


class ImpossiblePlan(InvalidRequest):
    """The hints name an unknown worker, or a plan that the workers cannot serve."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Possible workers: at least one decode worker, and at least one plan for each."""

    decoders: list[WorkerSnapshot]
    prefillers: list[WorkerSnapshot]  # of any fingerprint
    plan: HintedPlan | None = None  # None: the policy decides

    def prefillers_for(self, decode: WorkerSnapshot) -> list[WorkerSnapshot]:
        """Return the prefill workers with the same fingerprint; none for a colocated worker, which prefills itself."""
        if decode.role is WorkerRole.BOTH:
            return []
        return [worker for worker in self.prefillers if worker.fingerprint == decode.fingerprint]


def find_candidates(request: RoutedRequest, cluster: ClusterSnapshot) -> Candidates:
    """Return the workers for a request. Raises NoWorker if none can decode now, ImpossiblePlan for wrong hints."""
    needed = max(request.num_final_tokens, request.num_tokens + 1)
    decoders, prefillers, longest = [], [], 0
    for worker in cluster.workers:
        if worker.role is not WorkerRole.DECODE and worker.max_model_len > request.num_tokens:
            prefillers.append(worker)  # it samples the first token too
        if worker.role is WorkerRole.PREFILL:
            continue
        if worker.max_model_len >= needed:
            decoders.append(worker)
        else:
            longest = max(longest, worker.max_model_len)
    hints = request.hints
    if hints.decode_worker is not None or hints.prefill_worker is not None or hints.plan is not None:
        return _hinted(request, cluster, decoders, prefillers)
    if not decoders:
        raise NoWorker(
            f"no decode worker takes {needed} tokens now; the most is {longest}"
            if longest
            else "no decode worker is ready"
        )
    return Candidates(decoders, prefillers)


def _hinted(
    request: RoutedRequest,
    cluster: ClusterSnapshot,
    decoders: list[WorkerSnapshot],
    prefillers: list[WorkerSnapshot],
) -> Candidates:
    hints = request.hints
    plan = hints.plan
    if hints.decode_worker is not None:
        decoders = _named(hints.decode_worker, "decode", cluster, decoders)
    if hints.prefill_worker is not None:
        if plan == "local":
            raise ImpossiblePlan(f"the plan is local, but prefill worker {hints.prefill_worker} is asked for")
        plan = "remote"
        prefillers = _named(hints.prefill_worker, "prefill", cluster, prefillers)
    if not decoders:
        raise NoWorker("no decode worker takes the request now")
    candidates = Candidates(decoders, prefillers, plan)
    if plan == "remote":
        able = [decode for decode in decoders if candidates.prefillers_for(decode)]
        if not able:
            names = ", ".join(decode.worker_id for decode in decoders[:4])
            through = hints.prefill_worker or "any prefill worker"
            raise ImpossiblePlan(f"the plan is remote, but {through} cannot prefill for {names}")
        candidates = Candidates(able, prefillers, plan)
    return candidates


def _named(name: str, role: str, cluster: ClusterSnapshot, able: list[WorkerSnapshot]) -> list[WorkerSnapshot]:
    named = [worker for worker in able if worker.worker_id == name]
    if not named:
        found = next((worker for worker in cluster.workers if worker.worker_id == name), None)
        if found is None:
            raise ImpossiblePlan(f"{role} worker {name} is asked for, but no such worker takes requests now")
        raise ImpossiblePlan(
            f"{role} worker {name} is asked for, but it is in the role {found.role.value} and takes up to "
            f"{found.max_model_len} tokens"
        )
    return named
