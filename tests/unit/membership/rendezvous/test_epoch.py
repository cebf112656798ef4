"""The order of ranks, and epochs as messages."""

import random

from hypothesis import given
from hypothesis import strategies as st

from baton.membership.rendezvous.epoch import Epoch, Life, epoch_from_proto, epoch_to_proto, in_rank_order

NAMES = st.text(st.sampled_from("ab-019"), min_size=1, max_size=6)


def lives(*names: str) -> list[Life]:
    return [Life(name, "1", "h:1") for name in names]


def test_numbers_in_names_are_ordered_by_value() -> None:
    names = ["decode-0", "decode-2", "decode-10", "prefill-1", "prefill-1-2", "prefill-1-10", "7", "10"]
    shuffled = random.Random(0).sample(names, len(names))
    expected = ["7", "10", *names[:6]]
    assert [life.name for life in in_rank_order(lives(*shuffled))] == expected


def test_ranks_of_a_host_are_consecutive() -> None:
    """For any names, because those of replicas do not contain their host."""
    places = {"d": "10.0.0.9:7", "a": "10.0.0.10:7", "c": "10.0.0.9:8", "b": "10.0.0.10:9"}
    shuffled = [Life(name, "1", address) for name, address in places.items()]
    assert [life.name for life in in_rank_order(shuffled)] == ["c", "d", "a", "b"]


@given(st.lists(NAMES, unique=True, min_size=1), st.randoms())
def test_every_member_computes_the_same_order(names: list[str], rng: random.Random) -> None:
    ordered = in_rank_order(lives(*names))
    assert in_rank_order(rng.sample(ordered, len(ordered))) == ordered


def test_an_epoch_round_trips_through_its_message() -> None:
    epoch = Epoch(7, tuple(lives("a", "b")), "h:2")
    assert epoch_from_proto(epoch_to_proto(epoch)) == epoch
    assert epoch.members == ("a/1", "b/1")
