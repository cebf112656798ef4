"""Which workers serve a request: pure functions over a snapshot, without clock or I/O.

Prices are in tokens to compute. A worker's load is what it has to compute already; a request's price at a worker is
what of its prompt is not cached there.
"""

from collections.abc import Callable
from dataclasses import dataclass

from router.cluster import ClusterSnapshot, Plan, RoutedRequest, WorkerRole, WorkerSnapshot
from router.errors import NoWorker

Policy = Callable[[RoutedRequest, ClusterSnapshot], Plan]

REQUEST_TOKENS = 16  # each request in the batch slows its worker like so many tokens to compute
HANDOVER_SHARE = 0.125  # price of a token whose KV is handed over, against one that is computed
MIN_SOURCE_BLOCKS = 4  # a third worker is asked only for at least so many more blocks than the prefill worker has


@dataclass(frozen=True, slots=True)
class PrefixPolicy:
    """The longest cached prefix, weighed against load."""

    local_prefill_below: int  # fewer uncached tokens are prefilled at the decode worker; 0: never

    def __call__(self, request: RoutedRequest, cluster: ClusterSnapshot) -> Plan:
        """The cheapest plan. Raises NoWorker if no worker can decode."""
        return min(
            (self._priced(request, cluster, decode) for decode in _decoders(request, cluster)),
            key=lambda priced: (priced[0], priced[1].decode.worker_id),
        )[1]

    def _priced(self, request: RoutedRequest, cluster: ClusterSnapshot, decode: WorkerSnapshot) -> tuple[float, Plan]:
        missing = request.missing_tokens(decode)
        price: float = load_tokens(decode) + shortage_tokens(decode, missing)
        prefillers = cluster.prefillers(decode.fingerprint)
        reason = local_reason(decode, missing, self.local_prefill_below, bool(prefillers))
        if reason is not None:
            return price + missing, Plan(decode, None, None, reason)
        prefill = min(prefillers, key=lambda worker: (prefill_price(request, worker), worker.worker_id))
        price += HANDOVER_SHARE * missing + prefill_price(request, prefill)
        source = find_prefix_source(request, cluster, prefill)
        return price, Plan(decode, prefill, source, f"{missing} tokens uncached at the decode worker")


@dataclass(frozen=True, slots=True)
class RoundRobinPolicy:
    """Each in turn, whatever they have cached or to do."""

    local_prefill_below: int  # as above

    def __call__(self, request: RoutedRequest, cluster: ClusterSnapshot) -> Plan:
        """The next plan. Raises NoWorker if no worker can decode."""
        decoders = sorted(_decoders(request, cluster), key=lambda worker: worker.worker_id)
        decode = decoders[cluster.turn % len(decoders)]
        prefillers = sorted(cluster.prefillers(decode.fingerprint), key=lambda worker: worker.worker_id)
        missing = request.missing_tokens(decode)
        reason = local_reason(decode, missing, self.local_prefill_below, bool(prefillers))
        if reason is not None:
            return Plan(decode, None, None, reason)
        prefill = prefillers[cluster.turn // len(decoders) % len(prefillers)]
        return Plan(decode, prefill, None, f"turn {cluster.turn}")


def make_policy(name: str, local_prefill_below: int) -> Policy:
    """The policy of this name. Raises ValueError if there is none."""
    policies: dict[str, Policy] = {
        "prefix": PrefixPolicy(local_prefill_below),
        "round_robin": RoundRobinPolicy(local_prefill_below),
    }
    if name not in policies:
        raise ValueError(f"policy is {name!r}, but must be one of {', '.join(policies)}")
    return policies[name]


def local_reason(decode: WorkerSnapshot, missing: int, local_prefill_below: int, any_prefill: bool) -> str | None:
    """Why the decode worker prefills itself; None if it does not."""
    if decode.role is WorkerRole.BOTH:
        return "a colocated worker prefills its own requests"
    if not any_prefill:
        return "no prefill worker"
    if missing < local_prefill_below:
        return f"only {missing} tokens uncached, below {local_prefill_below}"
    return None


def load_tokens(worker: WorkerSnapshot) -> int:
    """What a worker has to do already."""
    return worker.num_queued_tokens + REQUEST_TOKENS * worker.num_requests


def shortage_tokens(worker: WorkerSnapshot, missing: int) -> int:
    """Tokens for which the worker has no free block now; the request waits while others free them."""
    return max(0, missing - worker.num_free_blocks * worker.block_size)


def prefill_price(request: RoutedRequest, worker: WorkerSnapshot) -> int:
    """What a prefill worker has to compute before the request's first token."""
    return load_tokens(worker) + request.missing_tokens(worker) + shortage_tokens(worker, request.num_tokens)


def find_prefix_source(
    request: RoutedRequest, cluster: ClusterSnapshot, prefill: WorkerSnapshot
) -> WorkerSnapshot | None:
    """The worker with clearly more of the prefix cached than the prefill worker, if there is one.

    It may be the decode worker: in a chat that has the turns before, which the prefill worker never saw whole.
    """
    others = [
        worker
        for worker in cluster.workers
        if worker.fingerprint == prefill.fingerprint and worker.worker_id != prefill.worker_id
    ]
    if not others:
        return None
    best = min(others, key=lambda worker: (request.missing_tokens(worker), load_tokens(worker), worker.worker_id))
    gain = request.missing_tokens(prefill) - request.missing_tokens(best)
    return best if gain >= MIN_SOURCE_BLOCKS * prefill.block_size else None


def _decoders(request: RoutedRequest, cluster: ClusterSnapshot) -> list[WorkerSnapshot]:
    decoders = cluster.decoders()
    if not decoders:
        raise NoWorker("no decode worker is ready")
    needed = max(request.num_final_tokens, request.num_tokens + 1)
    fitting = [worker for worker in decoders if worker.max_model_len >= needed]
    if not fitting:
        longest = max(worker.max_model_len for worker in decoders)
        raise NoWorker(f"no decode worker takes {needed} tokens now; the most is {longest}")
    return fitting
