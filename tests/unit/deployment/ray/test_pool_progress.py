"""Times since which missing replicas have been wanted."""

from hypothesis import given
from hypothesis import strategies as st

from baton.deployment.ray.pool_progress import PoolProgress, ProgressWatch

UPDATES = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.floats(0, 100)), max_size=50)


def replicas(count: int, first: int = 0) -> list[str]:
    """Return this many replicas, as incarnations."""
    return [f"life {number}" for number in range(first, first + count)]


def test_the_first_wanted_replica_is_assumed_to_start_first() -> None:
    watch = ProgressWatch()
    assert watch.update(2, replicas(2), 0.0) == PoolProgress()
    assert watch.update(3, replicas(2), 10.0).starting_since_s == (10.0,)
    assert watch.update(5, replicas(2), 20.0).starting_since_s == (10.0, 20.0, 20.0)
    assert watch.update(5, replicas(3), 70.0) == PoolProgress(starting_since_s=(20.0, 20.0), start_s=60.0)
    assert watch.update(5, replicas(5), 90.0) == PoolProgress(start_s=70.0)  # the median


def test_the_last_wanted_replica_is_given_up_first() -> None:
    watch = ProgressWatch()
    watch.update(2, replicas(1), 0.0)
    watch.update(3, replicas(1), 10.0)
    assert watch.update(2, replicas(1), 20.0) == PoolProgress(starting_since_s=(0.0,))


def test_a_dead_replica_is_missing_from_its_death_on() -> None:
    watch = ProgressWatch()
    watch.update(3, replicas(3), 0.0)
    assert watch.update(3, replicas(2), 100.0).starting_since_s == (100.0,)
    assert watch.update(3, replicas(2), 150.0).starting_since_s == (100.0,)


def test_a_replica_that_was_unreachable_for_a_while_did_not_start() -> None:
    watch = ProgressWatch()
    watch.update(3, replicas(3), 0.0)
    watch.update(4, replicas(3), 5.0)
    assert watch.update(4, replicas(1), 10.0).starting_since_s == (5.0, 10.0, 10.0)
    assert watch.update(4, replicas(3), 11.0) == PoolProgress(starting_since_s=(5.0,))
    assert watch.update(4, replicas(4), 65.0) == PoolProgress(start_s=60.0)
    assert watch.update(4, replicas(4, first=100), 700.0).num_stopping == 0
    assert len(watch._seen_s) == 4


def test_replicas_beyond_the_target_are_stopping() -> None:
    watch = ProgressWatch()
    watch.update(3, replicas(3), 0.0)
    assert watch.update(1, replicas(3), 1.0) == PoolProgress(num_stopping=2)


@given(UPDATES)
def test_no_replica_is_counted_twice(updates: list[tuple[int, int, float]]) -> None:
    watch, now_s = ProgressWatch(), 0.0
    for target, num_ready, pause_s in updates:
        now_s += pause_s
        progress = watch.update(target, replicas(num_ready), now_s)
        assert num_ready + len(progress.starting_since_s) - progress.num_stopping == target
        assert list(progress.starting_since_s) == sorted(progress.starting_since_s)
        assert all(since_s <= now_s for since_s in progress.starting_since_s)
        assert 0 <= progress.start_s <= now_s
