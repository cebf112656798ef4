"""The search for the stored beginning of a sequence."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.kvtransfer.store.prefix_search import PROBES, count_prefix


class Store:
    """Numbers of stored keys, and how often they were looked up."""

    def __init__(self, stored: set[int]) -> None:
        self.stored = stored
        self.rounds = 0

    def first_missing(self, places: Sequence[int]) -> int:
        assert 0 < len(places) <= PROBES
        assert list(places) == sorted(set(places))
        self.rounds += 1
        return next((at for at, place in enumerate(places) if place not in self.stored), len(places))


@given(st.integers(0, 10_000).flatmap(lambda num_keys: st.tuples(st.just(num_keys), st.integers(0, num_keys))))
def test_it_counts_a_stored_prefix(sizes: tuple[int, int]) -> None:
    num_keys, num_stored = sizes
    store = Store(set(range(num_stored)))
    assert count_prefix(num_keys, store.first_missing) == num_stored
    assert store.rounds <= 3


@given(
    st.integers(0, PROBES - 1).flatmap(lambda num_keys: st.tuples(st.just(num_keys), st.sets(st.integers(0, PROBES))))
)
def test_few_keys_are_all_looked_up(case: tuple[int, set[int]]) -> None:
    num_keys, stored = case
    store = Store(stored)
    expected = next((place for place in range(num_keys) if place not in stored), num_keys)
    assert count_prefix(num_keys, store.first_missing) == expected
    assert store.rounds <= 1


@given(st.integers(1, 2000), st.sets(st.integers(0, 2000)))
def test_gaps_are_between_stored_keys(num_keys: int, missing: set[int]) -> None:
    store = Store(set(range(num_keys)) - missing)
    count = count_prefix(num_keys, store.first_missing)
    assert count in (0, num_keys) or (count - 1 in store.stored and count not in store.stored)
    assert count == 0 or {0, count - 1} <= store.stored


@pytest.mark.parametrize("num_keys", [1, 31, 32, 8192])
def test_without_the_first_key_there_is_none(num_keys: int) -> None:
    store = Store(set(range(1, num_keys)))
    assert (count_prefix(num_keys, store.first_missing), store.rounds) == (0, 1)
