"""Free capacity of a cluster, and the budget that follows from it."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.settings import PoolLimits, ScalingSettings
from baton.deployment.kubernetes.api_objects import Node, Taint
from baton.deployment.kubernetes.cluster_budget import ClusterBudget, cluster_budget
from baton.deployment.kubernetes.cluster_use import ClusterUse
from baton.deployment.kubernetes.node_use import NodeUse, node_use, tolerated
from baton.deployment.kubernetes.pod_use import PodUse
from baton.deployment.kubernetes.room import NodeRoom, num_replicas, room
from baton.deployment.kubernetes.settings import KubernetesSettings, PoolPods, Toleration
from tests.unit.deployment.kubernetes_objects import (
    DECODE,
    PREFILL,
    TOLERATED,
    Json,
    kubernetes_settings,
    node,
    scaling_settings,
)

BOTH, NEITHER = ByPool(True, True), ByPool(False, False)
OF_PREFILL, OF_DECODE = ByPool(True, False), ByPool(False, True)
SIZES = st.integers(1, 9)


def use_of(written: Json, settings: KubernetesSettings | None = None) -> NodeUse:
    return node_use(Node.model_validate(written), settings or kubernetes_settings())


@pytest.mark.parametrize(
    "written",
    [
        node("n", cordoned=True),
        node("n", ready="False"),
        node("n", ready="Unknown"),
        node("n", ready=None),
        node("n", deleted=True),
        node("n", taints=[TOLERATED, {"key": "maintenance", "effect": "NoExecute"}]),
        node("n", taints=[{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]),
    ],
)
def test_unusable_nodes_have_no_room(written: Json) -> None:
    assert use_of(written) == NodeUse("n", Decimal(8), NEITHER)


def test_usable_nodes_have_room() -> None:
    avoided = {"key": "spot", "effect": "PreferNoSchedule"}
    assert use_of(node("n", taints=[TOLERATED, avoided])) == NodeUse("n", Decimal(8), BOTH)
    assert use_of(node("n", gpus=None)) == NodeUse("n", Decimal(0), BOTH)


def test_each_pool_has_its_own_nodes() -> None:
    settings = KubernetesSettings(
        prefill=PoolPods(labels=PREFILL, node_selector={"gpu": "l40s"}),
        decode=PoolPods(labels=DECODE, node_selector={"gpu": "h200", "rdma": "yes"}),
    )
    assert use_of(node("n", labels={"gpu": "l40s"}, taints=()), settings).takes == OF_PREFILL
    assert use_of(node("n", labels={"gpu": "h200", "rdma": "yes"}, taints=()), settings).takes == OF_DECODE
    assert use_of(node("n", labels={"gpu": "h200"}, taints=()), settings).takes == NEITHER


def test_an_invalid_amount_names_its_node() -> None:
    with pytest.raises(ValueError, match="node n: '8Q' is not a quantity"):
        use_of(node("n", gpus="8Q"))


@pytest.mark.parametrize(
    ("toleration", "is_tolerated"),
    [
        (Toleration(operator="Exists"), True),
        (Toleration(key="team", operator="Exists"), True),
        (Toleration(key="team", value="a"), True),
        (Toleration(key="team", value="a", effect="NoSchedule"), True),
        (Toleration(key="team", operator="Exists", effect="NoExecute"), False),
        (Toleration(key="team"), False),
        (Toleration(key="team", value="b"), False),
        (Toleration(key="other", operator="Exists"), False),
        (Toleration(value="a"), False),
    ],
)
def test_tolerations_match_taints(toleration: Toleration, is_tolerated: bool) -> None:
    taint = Taint(key="team", value="a", effect="NoSchedule")
    assert tolerated(taint, [Toleration(key="x", value="y"), toleration]) is is_tolerated


@given(
    st.lists(st.tuples(st.decimals(0, 16, places=1), st.booleans()), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 6), st.decimals(0, 9, places=1)), max_size=12),
)
def test_room_is_between_zero_and_the_nodes_capacity(
    nodes: list[tuple[Decimal, bool]], pods: list[tuple[int, Decimal]]
) -> None:
    uses = [NodeUse(f"n{num}", has, ByPool(takes, takes)) for num, (has, takes) in enumerate(nodes)]
    placed = [PodUse(f"n{num}" if num else None, amount, NEITHER) for num, amount in pods]
    rooms = room(uses, placed)
    usable = [use for use in uses if use.is_usable]
    assert len(rooms) == len(usable)
    for free, use in zip(rooms, usable, strict=True):
        taken = sum(each.amount for each in placed if each.node == use.name)
        assert 0 <= free.gpus <= use.allocatable
        assert free.gpus == max(0, int(use.allocatable - taken))


@given(st.integers(0, 24), SIZES, SIZES, st.sampled_from([BOTH, OF_PREFILL, OF_DECODE]))
def test_a_node_is_filled_with_the_best_mix_of_pods(gpus: int, prefill: int, decode: int, takes: ByPool[bool]) -> None:
    fits = [
        num_prefill * prefill + num_decode * decode
        for num_prefill in range(gpus + 1 if takes.prefill else 1)
        for num_decode in range(gpus + 1 if takes.decode else 1)
        if num_prefill * prefill + num_decode * decode <= gpus
    ]
    assert NodeRoom(gpus, takes).filled(ByPool(prefill, decode)) == max(fits)


@pytest.mark.parametrize(
    ("num_pods", "gpus_per_pod", "gpus_per_replica", "expected"),
    [(5, 1, 1, 5), (3, 8, 4, 6), (5, 8, 16, 2), (1, 8, 16, 0), (0, 8, 1, 0)],
)
def test_number_of_replicas_in_pods(num_pods: int, gpus_per_pod: int, gpus_per_replica: int, expected: int) -> None:
    assert num_replicas(num_pods, gpus_per_pod, gpus_per_replica) == expected


def cluster(
    free: list[int], prefill: int = 0, decode: int = 0, pending_prefill: int = 0, pending_decode: int = 0, size: int = 2
) -> ClusterUse:
    """Return nodes with these free GPUs, running pods of one GPU (prefill) and of `size` (decode), and pending ones."""
    nodes = [NodeUse(f"n{num}", Decimal(gpus), BOTH) for num, gpus in enumerate(free)]
    full = NodeUse("full", Decimal(prefill + size * decode), BOTH)
    pods = [
        *[PodUse("full", Decimal(1), OF_PREFILL)] * prefill,
        *[PodUse("full", Decimal(size), OF_DECODE)] * decode,
        *[PodUse(None, Decimal(1), OF_PREFILL)] * pending_prefill,
        *[PodUse(None, Decimal(size), OF_DECODE)] * pending_decode,
    ]
    return ClusterUse((*nodes, full), tuple(pods))


def budget(use: ClusterUse, allowed: int = 100, prefill: int = 1, decode: int = 2) -> ClusterBudget:
    return cluster_budget(use, kubernetes_settings(prefill, decode), scaling_settings(allowed, prefill, decode))


def numbers(found: ClusterBudget) -> tuple[int, int | None, int | None]:
    """Return the budget and each pool's maximum."""
    most = found.settings.limits.map(lambda limits: limits.max_replicas)
    return found.settings.budget_gpus, most.prefill, most.decode


def test_the_budget_is_the_own_pods_gpus_and_the_free_ones() -> None:
    assert numbers(budget(cluster([4, 3], prefill=2, decode=3))) == (15, 9, 6)


def test_the_budget_is_at_most_the_operators() -> None:
    assert numbers(budget(cluster([4, 3], prefill=2, decode=3), allowed=10)) == (10, 9, 6)


def test_pending_pods_take_from_the_free_gpus() -> None:
    assert numbers(budget(cluster([4], prefill=2, pending_prefill=1, pending_decode=1))) == (6, 6, 2)


def test_pending_pods_without_a_place_stay_in_the_budget() -> None:
    found = budget(cluster([1], prefill=2, decode=1, pending_decode=3))
    assert numbers(found) == (10, 3, 4)
    assert (found.placed_gpus, found.pending_gpus, found.free_gpus) == (4, 6, 1)


def test_remainders_of_several_nodes_are_no_place_for_a_pod() -> None:
    use = cluster([3, 3, 3], decode=1, size=4)
    assert numbers(budget(use, prefill=4, decode=4)) == (8, 1, 1)


def test_a_replica_may_take_several_nodes() -> None:
    use = cluster([8, 8, 8, 7], size=8)
    settings = kubernetes_settings(8, 8)
    found = cluster_budget(use, settings, scaling_settings(100, 8, 16))
    assert numbers(found) == (24, 3, 1)


def test_several_replicas_may_share_a_pod() -> None:
    found = cluster_budget(cluster([8, 8, 8, 7]), kubernetes_settings(8, 8), scaling_settings(100, 2, 4))
    assert numbers(found) == (24, 12, 6)


def test_pools_that_share_their_pods() -> None:
    shared = PoolPods(labels={"app": "baton"}, gpus_per_pod=4)
    use = ClusterUse((NodeUse("n0", Decimal(12), BOTH),), (PodUse("n0", Decimal(4), BOTH),))
    found = cluster_budget(use, KubernetesSettings(prefill=shared, decode=shared), scaling_settings(100, 1, 4))
    assert numbers(found) == (12, 12, 3)


def test_the_minimum_is_wanted_even_in_an_empty_cluster() -> None:
    assert numbers(budget(ClusterUse((), ()))) == (3, 1, 1)


def test_the_budgets_log_line() -> None:
    assert budget(cluster([4], prefill=2, decode=3, pending_decode=1)).line() == (
        "12 GPUs: Baton's pods have 8 and wait for 2, 4 are free on 2 nodes; at most 6 prefill and 5 decode replicas"
    )


@given(
    st.lists(st.integers(0, 10), max_size=6),
    st.tuples(*[st.integers(0, 5)] * 4),
    st.tuples(SIZES, SIZES),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(0, 60),
)
def test_a_budget_is_within_the_capacity_and_the_limits(
    free: list[int], ours: tuple[int, int, int, int], sizes: tuple[int, int], least: tuple[int, int], more: int
) -> None:
    prefill, decode, pending_prefill, pending_decode = ours
    use = cluster(free, prefill, decode, pending_prefill, pending_decode, sizes[1])
    scaling = ScalingSettings(
        budget_gpus=sizes[0] * least[0] + sizes[1] * least[1] + more,
        prefill=PoolLimits(gpus_per_replica=sizes[0], min_replicas=least[0]),
        decode=PoolLimits(gpus_per_replica=sizes[1], min_replicas=least[1]),
    )
    found = cluster_budget(use, kubernetes_settings(*sizes), scaling)
    found.settings.check()
    held = prefill + pending_prefill + sizes[1] * (decode + pending_decode)
    gpus, most_prefill, most_decode = numbers(found)
    assert min(held, scaling.budget_gpus) <= gpus <= scaling.budget_gpus
    assert gpus <= max(held + sum(free), sizes[0] * least[0] + sizes[1] * least[1])
    assert found.free_gpus <= sum(free)
    assert most_prefill is not None
    assert most_decode is not None
    assert most_decode >= decode + pending_decode
    assert most_decode == max(least[1], decode + max(pending_decode, sum(gpus // sizes[1] for gpus in free)))
    assert most_prefill == max(least[0], prefill + max(pending_prefill, sum(gpus // sizes[0] for gpus in free)))


@pytest.mark.parametrize(("gpus_per_pod", "gpus_per_replica"), [(8, 3), (4, 6)])
def test_replicas_that_do_not_fill_pods_are_refused(gpus_per_pod: int, gpus_per_replica: int) -> None:
    settings = kubernetes_settings(1, gpus_per_pod)
    with pytest.raises(ValueError, match=f"decode: gpus_per_pod is {gpus_per_pod}, which replicas of"):
        settings.check_pod_sizes(scaling_settings(100, 1, gpus_per_replica))
