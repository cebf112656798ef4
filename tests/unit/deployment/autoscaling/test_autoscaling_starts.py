"""Replicas that are asked for and do not come."""

from dataclasses import replace

import pytest

from baton.deployment.autoscaling.snapshot import PoolSnapshot, PoolsSnapshot
from baton.deployment.ray.options import ReplicaOptions
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, Looker, pool, sizes, snapshot, traffic

HASTY = replace(SETTINGS, upscale_delay_s=0.0, start_timeout_s=100.0, retry_after_s=60.0, max_retry_after_s=200.0)
LOAD = traffic(19.0, output=10)  # needs 5 replicas for prefill, 1 for decode


def at(now_s: float, prefills: PoolSnapshot, decodes: PoolSnapshot | None = None) -> PoolsSnapshot:
    return snapshot(now_s, LOAD, prefills, decodes or pool(1))


def failed(looker: Looker, from_s: float) -> float:
    """Two more replicas are asked for, and do not come; the time at which they are taken back."""
    assert sizes(looker.look(at(from_s, pool(3)))) == (5, 1)
    starting = pool(3, starting_since_s=(from_s, from_s))
    for second in range(1, int(HASTY.start_timeout_s) + 1):
        assert sizes(looker.look(at(from_s + second, starting))) == (5, 1)
    end_s = from_s + HASTY.start_timeout_s + 1
    decision = looker.look(at(end_s, starting))
    assert sizes(decision) == (3, 1)
    assert decision.believed_gpus == 4
    return end_s


def looks_at(looker: Looker, from_s: float, until_s: float, seen: PoolSnapshot) -> set[tuple[int, int]]:
    found = set()
    for second in range(int(from_s), int(until_s)):
        found.add(sizes(looker.look(at(float(second), seen))))
    return found


def test_what_does_not_come_is_taken_back_and_tried_again_later_and_later() -> None:
    looker = Looker(HASTY)
    end_s = failed(looker, 0.0)
    for wait_s in (60.0, 120.0, 200.0, 200.0):  # doubled, and bounded
        assert looks_at(looker, end_s + 1, end_s + wait_s, pool(3)) == {(3, 1)}
        end_s = failed(looker, end_s + wait_s)


def test_who_takes_no_longer_than_the_others_took_is_waited_for() -> None:
    """A checkpoint that takes 90 s to load once took 60 s; with a cold cache it may take twice that."""
    looker = Looker(HASTY)
    looker.look(at(0.0, pool(3, start_s=90.0)))
    starting = pool(3, starting_since_s=(0.0, 0.0), start_s=90.0)
    assert looks_at(looker, 1.0, 181.0, starting) == {(5, 1)}
    assert sizes(looker.look(at(181.0, starting))) == (3, 1)


def test_a_start_as_long_as_a_replica_may_take_is_waited_for() -> None:
    """What is taken back while it still loads never comes, however often it is tried again."""
    looker = Looker(replace(SETTINGS, upscale_delay_s=0.0))
    looker.look(at(0.0, pool(3)))
    longest_s = ReplicaOptions().start_timeout_s
    assert looks_at(looker, 1.0, longest_s, pool(3, starting_since_s=(0.0, 0.0))) == {(5, 1)}


def test_a_replica_that_lingers_is_no_second_failure() -> None:
    looker = Looker(HASTY)
    end_s = failed(looker, 0.0)
    lingering = pool(3, starting_since_s=(0.0,))
    assert looks_at(looker, end_s + 1, end_s + 60, lingering) == {(3, 1)}
    assert looker.state is not None
    assert looker.state.trouble is not None
    assert looker.state.trouble.until_s == end_s + 60


def test_those_that_were_asked_for_one_after_the_other_fail_as_one() -> None:
    looker = Looker(HASTY)
    starting = (0.0, 3.0)
    for second in range(105):
        looker.look(at(float(second), pool(3, starting_since_s=starting)))
    assert looker.state is not None
    assert looker.state.trouble is not None
    assert looker.state.trouble.retry_after_s == 60.0
    assert looker.state.trouble.until_s == 104 + 60
    assert looker.state.grants.sizes.prefill == 3


def test_what_came_stays_and_only_the_rest_is_taken_back() -> None:
    looker = Looker(HASTY)
    looker.look(at(0.0, pool(3)))
    looks_at(looker, 1.0, 100.0, pool(4, starting_since_s=(0.0,)))
    decision = looker.look(at(101.0, pool(4, starting_since_s=(0.0,))))
    assert sizes(decision) == (4, 1)
    assert decision.believed_gpus == 5


def test_the_other_pool_grows_only_into_what_came() -> None:
    looker = Looker(HASTY)
    end_s = failed(looker, 0.0)
    more = replace(at(end_s + 1, pool(3)), traffic=traffic(19.0, output=200))
    for second in range(50):
        decision = looker.look(replace(more, now_s=end_s + 1 + second))
        assert sum(sizes(decision)) <= 4
    assert decision.decode.wanted > 1
    assert decision.prefill.target < 3  # what there is, is shared anew


def test_more_than_was_believed_ends_the_trouble() -> None:
    looker = Looker(HASTY)
    end_s = failed(looker, 0.0)
    assert looker.look(at(end_s + 1, pool(3))).believed_gpus == 4
    decision = looker.look(at(end_s + 2, pool(4)))  # one came after all
    assert decision.believed_gpus == HASTY.budget_gpus
    assert sizes(decision) == (5, 1)


def test_old_trouble_is_forgotten() -> None:
    looker = Looker(HASTY)
    end_s = failed(looker, 0.0)
    quiet = replace(at(end_s + 1, pool(3)), traffic=traffic(1.0))
    for second in range(int(HASTY.retry_after_s + HASTY.max_retry_after_s) + 1):
        looker.look(replace(quiet, now_s=end_s + 1 + second))
    assert looker.state is not None
    assert looker.state.trouble is None


@pytest.mark.parametrize("starting", [(), (0.0,)])
def test_the_least_is_never_taken_back(starting: tuple[float, ...]) -> None:
    looker = Looker(HASTY)
    nothing = pool(0, starting_since_s=starting)
    for second in range(300):
        decision = looker.look(snapshot(float(second), LOAD, nothing, pool(1)))
        assert decision.prefill.target >= 1
    assert looker.state is not None
    assert looker.state.trouble is None or starting
