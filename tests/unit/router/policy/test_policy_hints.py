"""Hints for workers and plans."""

from dataclasses import replace

import pytest

from baton.engine.errors import InvalidRequest
from baton.router.policy.cluster import ImpossiblePlan
from baton.router.policy.named_policies import LeastLoadedPolicy, RoundRobinPolicy, make_policy
from baton.router.policy.policy import CostPolicy
from baton.router.request_context import RoutingHints
from tests.unit.router.rigs.cluster_builder import both, cluster, prefill, request, worker

COST = CostPolicy()


HINTED = cluster(
    worker("d1"),
    worker("d2", requests=60),
    both("b", requests=60),
    prefill("p1"),
    prefill("p2", requests=9, queued=9000),
)


@pytest.mark.parametrize(
    "policy", [COST, RoundRobinPolicy(None), LeastLoadedPolicy(64), make_policy("always_local", None)]
)
@pytest.mark.parametrize(
    ("hints", "decode", "prefill_ids"),
    [
        (RoutingHints(decode_worker="d2"), "d2", {"p1", "p2", "b", None}),
        (RoutingHints(decode_worker="d2", plan="local"), "d2", {None}),
        (RoutingHints(decode_worker="d2", plan="remote"), "d2", {"p1", "p2", "b"}),
        (RoutingHints(decode_worker="d2", prefill_worker="p2"), "d2", {"p2"}),
        (RoutingHints(decode_worker="b"), "b", {None}),
    ],
)
def test_hints_are_followed(policy: CostPolicy, hints: RoutingHints, decode: str, prefill_ids: set[str | None]) -> None:
    for turn in range(4):
        plan = policy(replace(request(500), hints=hints), replace(HINTED, turn=turn))
        assert plan.decode.worker_id == decode
        assert (plan.prefill.worker_id if plan.prefill else None) in prefill_ids


@pytest.mark.parametrize(
    ("hints", "text"),
    [
        (RoutingHints(decode_worker="d9"), "decode worker d9 is asked for, but no such worker takes requests now"),
        (RoutingHints(decode_worker="p1"), "decode worker p1 is asked for, but it is in the role prefill"),
        (RoutingHints(prefill_worker="p9"), "prefill worker p9 is asked for, but no such worker"),
        (RoutingHints(prefill_worker="d1"), "prefill worker d1 is asked for, but it is in the role decode"),
        (RoutingHints(prefill_worker="p1", plan="local"), "the plan is local, but prefill worker p1 is asked for"),
        (RoutingHints(decode_worker="b", plan="remote"), "remote, but no prefill worker can prefill for b"),
        (RoutingHints(decode_worker="b", prefill_worker="p1"), "remote, but p1 cannot prefill for b"),
    ],
)
def test_impossible_hints_are_rejected_by_name(hints: RoutingHints, text: str) -> None:
    with pytest.raises(ImpossiblePlan, match=text) as caught:
        COST(replace(request(500), hints=hints), HINTED)
    assert isinstance(caught.value, InvalidRequest)


def test_only_workers_whose_kv_is_equal_are_paired() -> None:
    quantized = replace(prefill("p", fingerprint="gptq"), kv_fingerprint="kv")
    remote = replace(request(500), hints=RoutingHints(plan="remote"))
    with pytest.raises(ImpossiblePlan, match=r"for d: their models differ .quantizations of one model need --allow"):
        COST(remote, cluster(worker("d"), quantized))
    plan = COST(remote, cluster(replace(worker("d"), kv_fingerprint="kv"), quantized))
    assert plan.prefill == quantized


def test_a_hint_for_a_worker_that_is_too_small_is_refused() -> None:
    with pytest.raises(ImpossiblePlan, match="takes up to 64 tokens"):
        COST(
            replace(request(100), hints=RoutingHints(decode_worker="d1")),
            cluster(worker("d1", max_model_len=64), worker("d2")),
        )
