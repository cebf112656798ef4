"""Grants stay within the budget at every moment; replicas flip if that is quicker."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.flips import Flips
from baton.deployment.autoscaling.grants import Grants, grant
from baton.deployment.autoscaling.settings import PoolLimits, ScalingSettings
from baton.deployment.autoscaling.snapshot import PoolSnapshot
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, pool, snapshot

FLIPPING = replace(SETTINGS, flip_s=5.0)  # a start takes 30 s, a drain 10


def granted(
    wanted: tuple[int, int],
    last: tuple[int, int],
    prefills: PoolSnapshot,
    decodes: PoolSnapshot,
    gpus: int = 8,
    chosen: ScalingSettings = SETTINGS,
    flips: Flips = Flips(),  # noqa: B008
) -> Grants:
    seen = snapshot(prefills=prefills, decodes=decodes)
    num_present = seen.pools.map(lambda replicas: replicas.num_live)
    return grant(ByPool(*wanted), Grants(ByPool(*last), flips), num_present, seen, Budget(gpus, chosen.limits), chosen)


def test_free_gpus_are_granted() -> None:
    assert granted((3, 4), (2, 2), pool(2), pool(2)).sizes == ByPool(3, 4)
    assert granted((6, 6), (2, 2), pool(2), pool(2)).sizes == ByPool(4, 4)
    assert granted((4, 12), (1, 3), pool(1), pool(3), gpus=8).sizes == ByPool(2, 6)  # in proportion if both grow


def test_a_gpu_is_granted_only_once_it_is_free() -> None:
    first = granted((3, 5), (4, 4), pool(4), pool(4))
    assert first.sizes == ByPool(3, 4)
    draining = granted((3, 5), (3, 4), pool(3, num_draining=1), pool(4))
    assert draining.sizes == ByPool(3, 4)
    assert granted((3, 5), (3, 4), pool(3), pool(4)).sizes == ByPool(3, 5)


def test_starting_replicas_and_those_not_yet_started_count() -> None:
    assert granted((4, 5), (4, 3), pool(3, starting_since_s=(0.0,)), pool(3)).sizes == ByPool(4, 4)
    assert granted((4, 6), (4, 3), pool(3), pool(3)).sizes == ByPool(4, 4)


def test_late_replicas_hold_their_gpus() -> None:
    seen = snapshot(prefills=pool(3, starting_since_s=(0.0, 0.0)), decodes=pool(2))
    found = grant(ByPool(3, 5), Grants(ByPool(3, 2)), ByPool(3, 2), seen, Budget(8, SETTINGS.limits), SETTINGS)
    assert found.sizes == ByPool(3, 3)


def test_nothing_is_granted_beyond_a_reduced_budget() -> None:
    assert granted((4, 4), (3, 4), pool(3), pool(4), gpus=6).sizes == ByPool(3, 4)


@settings(max_examples=30)
@given(st.data())
def test_the_budget_is_kept_through_any_changes(data: st.DataObject) -> None:
    costs = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    gpus = data.draw(st.integers(8, 24))
    chosen = replace(
        SETTINGS,
        budget_gpus=gpus,
        prefill=PoolLimits(gpus_per_replica=costs[0]),
        decode=PoolLimits(gpus_per_replica=costs[1]),
        flip_s=data.draw(st.sampled_from([None, 1.0])),
    )
    shared = Budget(gpus, chosen.limits)
    live, draining, last = [1, 1], [0, 0], Grants(ByPool(1, 1))
    for _ in range(25):
        wanted = ByPool(data.draw(st.integers(1, shared.most.prefill)), data.draw(st.integers(1, shared.most.decode)))
        seen = snapshot(
            prefills=pool(live[0], num_draining=draining[0]), decodes=pool(live[1], num_draining=draining[1])
        )
        last = grant(wanted, last, ByPool(*live), seen, shared, chosen)
        flips = list(last.flips.into.both())
        if data.draw(st.booleans()):  # otherwise the component that applies the targets is late
            live = [live[0] + flips[0] - flips[1], live[1] + flips[1] - flips[0]]
            flips = [0, 0]
        for at, size in enumerate(last.sizes.both()):
            if data.draw(st.booleans()):
                goal = size - flips[at] + flips[1 - at]  # without those that have yet to flip
                draining[at] += max(0, live[at] - goal)
                live[at] = goal
        draining = [data.draw(st.integers(0, each)) for each in draining]
        used = sum((a + b) * cost for a, b, cost in zip(live, draining, costs, strict=True))
        assert used <= gpus


def test_a_flip_saves_a_start() -> None:
    found = granted((3, 5), (4, 4), pool(4), pool(4), chosen=FLIPPING)
    assert found == Grants(ByPool(3, 5), Flips(to_decode=1))
    back = granted((5, 3), (4, 4), pool(4), pool(4), chosen=FLIPPING)
    assert back == Grants(ByPool(5, 3), Flips(to_prefill=1))


def test_a_flip_is_listed_until_it_begins_and_counts_once() -> None:
    again = granted((3, 5), (3, 5), pool(4), pool(4), chosen=FLIPPING, flips=Flips(to_decode=1))
    assert again == Grants(ByPool(3, 5), Flips(to_decode=1))
    under_way = granted((3, 5), (3, 5), pool(3), pool(4, num_flipping_in=1), chosen=FLIPPING, flips=Flips(to_decode=1))
    assert under_way == Grants(ByPool(3, 5))
    done = granted((3, 5), (3, 5), pool(3), pool(5), chosen=FLIPPING)
    assert done == Grants(ByPool(3, 5))


@pytest.mark.parametrize("flip_s", [None, 30.0])
def test_workers_flip_only_if_they_can_and_it_is_quicker_than_a_start(flip_s: float | None) -> None:
    found = granted((3, 5), (4, 4), pool(4), pool(4), chosen=replace(SETTINGS, flip_s=flip_s))
    assert found == Grants(ByPool(3, 4))


def test_a_free_gpu_is_used_if_a_start_is_quicker_than_a_drain_and_flip() -> None:
    slow = replace(SETTINGS, flip_s=25.0)
    assert granted((3, 6), (4, 4), pool(4), pool(4), gpus=9, chosen=slow) == Grants(ByPool(3, 6), Flips(to_decode=1))
    assert granted((3, 5), (4, 4), pool(4), pool(4), gpus=9, chosen=slow) == Grants(ByPool(3, 5))
    assert granted((3, 5), (4, 4), pool(4), pool(4), gpus=9, chosen=FLIPPING).flips == Flips(to_decode=1)


def test_replicas_of_different_sizes_do_not_flip() -> None:
    uneven = replace(FLIPPING, decode=PoolLimits(gpus_per_replica=2))
    assert granted((3, 3), (4, 2), pool(4), pool(2), chosen=uneven).flips == Flips()


def test_only_a_pool_with_excess_replicas_flips_them() -> None:
    assert granted((4, 6), (4, 4), pool(4), pool(4), chosen=FLIPPING).flips == Flips()
    starting = pool(3, starting_since_s=(0.0,))
    assert granted((3, 5), (4, 4), starting, pool(4), chosen=FLIPPING).flips == Flips()  # it is the one that goes
