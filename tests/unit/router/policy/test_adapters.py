"""Requests for an adapter: which workers may serve them, and what loading one into a slot costs."""

from dataclasses import replace

import pytest

from baton.engine.pooling.config import PoolingConfig
from baton.router.adapters.adapter import Adapter
from baton.router.errors import NoWorker
from baton.router.policy.cluster import RoutedRequest, WorkerSnapshot
from baton.router.policy.cost_model import CostModel
from baton.router.policy.embedding import choose_family
from baton.router.policy.estimates import RateBook
from baton.router.policy.policy import choose
from tests.unit.router.rigs.cluster_builder import cluster, names, prefill, worker

SQL = Adapter("sql", "/sql", "d1")
MODEL = CostModel()


def having(snapshot: WorkerSnapshot, *, resident: bool, digest: str = "d1", **more: object) -> WorkerSnapshot:
    slots = frozenset({"sql"}) if resident else frozenset()
    return replace(snapshot, adapters={"sql": digest}, resident_adapters=slots, **more)


def request(num_tokens: int = 100, **cached: int) -> RoutedRequest:
    return RoutedRequest(num_tokens, {f"{name}/1": count for name, count in cached.items()}, adapter=SQL)


def test_only_workers_with_the_same_contents_are_candidates() -> None:
    found = cluster(worker("a"), having(worker("b"), resident=True, digest="d2"), having(worker("c"), resident=False))
    assert [each.worker_id for each in found.having(SQL).workers] == ["c"]
    assert found.having(None) is found
    with pytest.raises(NoWorker, match="no decode worker with the adapter sql is ready"):
        choose(request(), cluster(worker("a")).having(SQL), MODEL)


def test_both_workers_of_a_handover_have_the_adapter() -> None:
    decode, able = having(worker("d"), resident=True), having(prefill("p2", queued=10_000), resident=True)
    found = cluster(decode, prefill("p1"), able).having(SQL)
    assert names(choose(request(2000), found, MODEL, local_prefill_below=0))[:2] == ("d", "p2")


def test_a_worker_with_the_adapter_in_a_slot_is_preferred_until_its_queue_costs_more() -> None:
    resident = having(worker("resident"), resident=True, adapter_load_s=0.1)
    other = having(worker("other"), resident=False, adapter_load_s=0.1)
    assert names(choose(request(), cluster(resident, other), MODEL))[0] == "resident"
    busy = replace(resident, num_requests=8, num_queued_tokens=20_000)
    assert names(choose(request(), cluster(busy, other), MODEL))[0] == "other"


def test_a_prefix_outweighs_a_load_that_takes_less_time() -> None:
    cached = having(worker("cached"), resident=False, adapter_load_s=0.02)
    resident = having(worker("resident"), resident=True)
    assert names(choose(request(8000, cached=7984), cluster(cached, resident), MODEL))[0] == "cached"


def test_a_slot_that_another_adapter_has_costs_its_reload() -> None:
    free = having(worker("free"), resident=False, max_loras=2, adapter_load_s=0.1)
    full = replace(free, worker_id="full", incarnation="full/1", resident_adapters=frozenset({"x", "y"}))
    costs = [MODEL.times(request(), each, _book(each)).evicted_adapter_s for each in (free, full)]
    assert costs == [0.0, 0.1]
    assert names(choose(request(), cluster(full, free), MODEL))[0] == "free"


def test_the_shortlist_of_many_workers_has_the_one_with_the_adapter_in_a_slot() -> None:
    others = [having(worker(f"w{place}"), resident=False, adapter_load_s=0.1) for place in range(20)]
    resident = having(worker("resident", queued=100), resident=True)
    assert names(choose(request(), cluster(*others, resident), MODEL))[0] == "resident"


def test_embeddings_come_from_workers_with_the_adapter() -> None:
    pooling = PoolingConfig(kind="mean", normalizes=True, size=8)
    able = having(replace(prefill("able"), pooling=pooling), resident=False)
    found = cluster(replace(prefill("other"), pooling=pooling), able)
    family = choose_family(found, adapter=SQL)
    assert [each.worker_id for each in family.workers(found)] == ["able"]
    assert len(choose_family(found).workers(found)) == 2


def _book(snapshot: WorkerSnapshot) -> RateBook:
    return RateBook(cluster(snapshot))
