"""The choice of workers for embeddings."""

from dataclasses import replace

import pytest

from baton.engine.errors import InvalidRequest
from baton.engine.pooling.config import PoolingConfig
from baton.router.errors import NoWorker
from baton.router.policy.cluster import ClusterSnapshot, ImpossiblePlan, WorkerSnapshot
from baton.router.policy.cost_model import CostModel
from baton.router.policy.embedding import EmbeddingFamily, choose_embedder, choose_family
from tests.unit.router.rigs.cluster_builder import both, cluster, prefill, request, worker

LAST = PoolingConfig(kind="last", normalizes=True, size=64)
MEAN = replace(LAST, kind="mean")
FAMILY = EmbeddingFamily("f", LAST)


def embedding(snapshot: WorkerSnapshot, pooling: PoolingConfig = LAST) -> WorkerSnapshot:
    return replace(snapshot, pooling=pooling)


def choose(workers: ClusterSnapshot, num_tokens: int = 100, number: int = 0, **cached: int) -> str:
    return choose_embedder(request(num_tokens, **cached), workers, FAMILY, num_tokens, CostModel(), number).worker_id


def test_prefill_and_colocated_workers_embed() -> None:
    workers = cluster(worker("d"), embedding(both("b")), embedding(prefill("p")), prefill("q"))
    assert [each.worker_id for each in FAMILY.workers(workers)] == ["b", "p"]
    assert choose_family(workers) == FAMILY


def test_one_family_serves_a_request() -> None:
    other = embedding(prefill("o"), MEAN)
    workers = cluster(other, embedding(prefill("p")), embedding(prefill("q")))
    assert choose_family(workers) == FAMILY
    assert {choose(workers, number=number) for number in range(50)} == {"p", "q"}
    assert choose_family(workers, "o") == EmbeddingFamily("f", MEAN, "o")
    assert choose_family(workers, "q").workers(workers) == [workers.workers[2]]


def test_why_no_worker_embeds() -> None:
    with pytest.raises(NoWorker, match="no prefill or colocated worker is ready"):
        choose_family(cluster(worker("d")))
    with pytest.raises(InvalidRequest, match="does not make embeddings"):
        choose_family(cluster(worker("d"), prefill("p")))
    with pytest.raises(ImpossiblePlan, match="prefill worker d is asked for"):
        choose_family(cluster(worker("d"), embedding(prefill("p"))), "d")
    with pytest.raises(NoWorker, match="takes 9000 tokens now"):
        choose(cluster(embedding(prefill("p"))), 9000)


def test_queues_and_prefixes_decide() -> None:
    busy, idle = embedding(prefill("busy", requests=3, queued=2000)), embedding(prefill("idle"))
    assert {choose(cluster(busy, idle), number=number) for number in range(20)} == {"idle"}
    assert {choose(cluster(busy, idle), 3000, number, busy=2900) for number in range(20)} == {"busy"}
    assert {choose(cluster(idle, embedding(prefill("p"))), number=number) for number in range(20)} == {"idle", "p"}
