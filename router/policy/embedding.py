"""The choice of a worker for embeddings: pure functions over a snapshot, without clock or I/O.

Embeddings need no decode worker: a prefill or colocated worker computes them. All inputs of a request go to workers of
one family, whose embeddings can be compared.
"""

from collections import Counter
from dataclasses import dataclass

from baton.engine.errors import InvalidRequest
from baton.engine.pooling.config import PoolingConfig
from baton.router.adapters.adapter import Adapter
from baton.router.errors import NoWorker
from baton.router.policy.cluster import (
    ClusterSnapshot,
    ImpossiblePlan,
    RoutedRequest,
    WorkerRole,
    WorkerSnapshot,
)
from baton.router.policy.cost_model import CostModel
from baton.router.policy.estimates import RateBook
from baton.router.policy.policy import MAX_PREFILLERS, TIE_S, TIE_SHARE, chance, shortlist


@dataclass(frozen=True, slots=True)
class EmbeddingFamily:
    """Workers whose embeddings can be compared: those of one model and pooling."""

    fingerprint: str
    pooling: PoolingConfig
    worker_id: str | None = None  # the only one that may be used, by the client's choice; None: any
    adapter: Adapter | None = None  # None: the model itself

    def workers(self, cluster: ClusterSnapshot) -> list[WorkerSnapshot]:
        """Return the family's workers in a snapshot."""
        return [
            worker
            for worker in cluster.having(self.adapter).workers
            if worker.role is not WorkerRole.DECODE
            and worker.pooling == self.pooling
            and worker.fingerprint == self.fingerprint
            and self.worker_id in (None, worker.worker_id)
        ]


def choose_family(
    cluster: ClusterSnapshot, worker_id: str | None = None, adapter: Adapter | None = None
) -> EmbeddingFamily:
    """Return the family with most workers; if `worker_id` is given, that worker's family, restricted to it.

    Raises NoWorker if no worker that could make embeddings is ready, InvalidRequest if the model makes none,
    ImpossiblePlan for an unknown worker.
    """
    able = [worker for worker in cluster.workers if worker.role is not WorkerRole.DECODE]
    if worker_id is not None:
        able = [worker for worker in able if worker.worker_id == worker_id]
        if not able:
            raise ImpossiblePlan(
                f"prefill worker {worker_id} is asked for, but no such prefill or colocated worker takes requests now"
            )
    if not able:
        raise NoWorker("no prefill or colocated worker is ready, which embeddings need")
    families = Counter((worker.fingerprint, worker.pooling) for worker in able if worker.pooling is not None)
    if not families:
        raise InvalidRequest(
            "the model does not make embeddings: its checkpoint names no pooling (modules.json), and the workers have "
            "none set"
        )
    (fingerprint, pooling), _ = families.most_common(1)[0]
    assert pooling is not None
    return EmbeddingFamily(fingerprint, pooling, worker_id, adapter)


def choose_embedder(
    request: RoutedRequest,
    cluster: ClusterSnapshot,
    family: EmbeddingFamily,
    longest: int,
    model: CostModel,
    number: int,
) -> WorkerSnapshot:
    """Return the worker that computes a batch of inputs soonest. Raises NoWorker if none can now.

    `request`: all inputs together; `longest`: tokens of the longest. Among nearly equal workers chance decides, by
    `number`.
    """
    able = [worker for worker in family.workers(cluster) if worker.max_model_len >= longest]
    if not able:
        raise NoWorker(f"no worker that makes embeddings takes {longest} tokens now")
    book = RateBook(cluster)
    priced = [
        (model.option_cost(model.option(request, model.times(request, worker, book))), worker)
        for worker in shortlist(request, able, book, MAX_PREFILLERS)
    ]
    least = min(cost for cost, _ in priced)
    ties = [worker for cost, worker in priced if cost <= least * (1 + TIE_SHARE) + TIE_S]
    return ties[chance(cluster.seed + number) % len(ties)]
