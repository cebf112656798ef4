"""The baseline policies."""

import pytest

from baton.router.policy.named_policies import LeastLoadedPolicy, RoundRobinPolicy, make_policy
from baton.router.policy.policy import CostPolicy
from tests.unit.router.rigs.cluster_builder import cluster, names, prefill, request, worker


def test_round_robin_takes_turns() -> None:
    workers = (worker("d2"), worker("d1"), prefill("p1"), prefill("p2"))
    plans = [RoundRobinPolicy(64)(request(100), cluster(*workers, turn=turn)) for turn in range(4)]
    assert [names(plan)[:2] for plan in plans] == [("d1", "p1"), ("d2", "p1"), ("d1", "p2"), ("d2", "p2")]
    assert names(RoundRobinPolicy(64)(request(63), cluster(*workers)))[:2] == ("d1", None)


def test_least_loaded_considers_only_work() -> None:
    workers = (worker("d1", queued=10), worker("d2", requests=3), prefill("p1", queued=20), prefill("p2", queued=10))
    plan = LeastLoadedPolicy(None)(request(500, d1=500, p1=500), cluster(*workers))
    assert names(plan) == ("d2", "p2", None)


def test_always_remote_and_always_local() -> None:
    workers = (worker("d", requests=60), prefill("p"))
    assert names(make_policy("always_remote", None)(request(500, d=500), cluster(*workers)))[1] == "p"
    assert names(make_policy("always_remote", None)(request(500), cluster(workers[0])))[1] is None
    assert names(make_policy("always_local", None)(request(5000), cluster(*workers)))[1] is None


def test_policies_by_name() -> None:
    assert make_policy("round_robin", 5) == RoundRobinPolicy(5)
    assert make_policy("cost", None) == CostPolicy()
    with pytest.raises(ValueError, match="must be one of cost, round_robin, least_loaded, always_remote, always_local"):
        make_policy("best", 5)
