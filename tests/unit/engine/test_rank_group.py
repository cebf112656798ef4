"""Ranks that wait for each other: what ends a wait, and what becomes of an epoch that does not come about."""

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from engine import rank_connections
from engine.errors import EngineEnded, GroupBroken
from engine.rank_group import RankGroup
from tests.unit.engine.group_rig import CPU, HOST, TIMEOUT_S, Group, Member

SOON_S = 2.0  # for who waits to hear of a newer epoch, which takes a fifth of a second


class Pair:
    """Two ranks of a group, each with a thread of its own."""

    def __init__(self) -> None:
        self.group = Group()
        self.ranks = [RankGroup(Member(self.group, name), HOST, CPU) for name in ("rank-0", "rank-1")]
        self.threads = [ThreadPoolExecutor(1) for _ in self.ranks]

    def form(self) -> None:
        """Both come."""
        self.group.set_members("rank-0", "rank-1")
        forming = [thread.submit(ranks.form) for thread, ranks in zip(self.threads, self.ranks, strict=True)]
        for each in forming:
            each.result(TIMEOUT_S)

    def waiting(self) -> "Future[list[list[int]]]":
        """The first rank tells a number, and waits for the other's, which tells none."""
        told = self.threads[0].submit(self.ranks[0].gather, [1])
        deadline_s = time.monotonic() + TIMEOUT_S
        while not self.ranks[0].is_waiting:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        return told

    def close(self) -> None:
        """Nobody waits any more."""
        for ranks in self.ranks:
            ranks.leave()
        pairs = zip(self.threads, self.ranks, strict=True)
        for each in [thread.submit(ranks.close) for thread, ranks in pairs]:
            each.result(TIMEOUT_S)
        for thread in self.threads:
            thread.shutdown()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_numbers_of_all_ranks_are_gathered_by_rank(pair: Pair) -> None:
    pair.form()
    told = pair.waiting()
    assert pair.threads[1].submit(pair.ranks[1].gather, [2]).result(TIMEOUT_S) == [[1], [2]]
    assert told.result(TIMEOUT_S) == [[1], [2]]
    assert not pair.ranks[0].is_waiting
    assert pair.ranks[0].waited_s > 0


def test_a_newer_epoch_ends_a_wait_for_a_rank_that_lives(pair: Pair) -> None:
    """Its connections are open, so nothing but the membership tells of it."""
    pair.form()
    told = pair.waiting()
    pair.group.set_members("rank-0")
    with pytest.raises(GroupBroken, match="epoch 2 of the group has begun"):
        told.result(SOON_S)
    assert not pair.ranks[0].is_waiting


def test_who_leaves_ends_its_own_wait(pair: Pair) -> None:
    pair.form()
    told = pair.waiting()
    pair.ranks[0].leave()
    with pytest.raises(GroupBroken, match="this rank has left its group"):
        told.result(SOON_S)


def test_who_is_gone_ends_the_others_wait(pair: Pair) -> None:
    """Its connections end, and the membership has not told of it yet."""
    pair.form()
    told = pair.waiting()
    pair.threads[1].submit(pair.ranks[1].drop).result(TIMEOUT_S)
    with pytest.raises(GroupBroken, match="a collective failed"):
        told.result(SOON_S)


@pytest.mark.parametrize(
    ("here", "reason"),
    [("rank-0", r"not every member came in \d s"), ("rank-1", r"rank-0 did not open a store in \d s")],
)
def test_an_epoch_that_does_not_form_is_reported_and_a_later_one_joined(
    here: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_connections, "FORM_TIMEOUT_S", 0.3)
    group = Group()
    ranks = RankGroup(Member(group, here), HOST, CPU)
    group.set_members("rank-0", "rank-1")
    with ThreadPoolExecutor(1) as thread:
        forming = thread.submit(ranks.form)
        try:
            with group.changed:
                assert group.changed.wait_for(lambda: len(group.broken) > 1, TIMEOUT_S)  # it goes on trying
            group.set_members(here)
            forming.result(TIMEOUT_S)
            assert ranks.size == 1
        finally:
            ranks.leave()
    assert [epoch for epoch, _ in group.broken[:2]] == [1, 2]
    assert re.fullmatch(reason, group.broken[0][1])


def test_who_leaves_forms_nothing_any_more(pair: Pair) -> None:
    forming = pair.threads[0].submit(pair.ranks[0].form)
    pair.ranks[0].leave()
    with pytest.raises(EngineEnded, match="this rank has left its group"):
        forming.result(SOON_S)


def test_what_is_dropped_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    pair = Pair()
    for _ in range(3):
        pair.form()
        for thread, ranks in zip(pair.threads, pair.ranks, strict=True):
            thread.submit(ranks.drop).result(TIMEOUT_S)
    pair.close()
    assert set(threading.enumerate()) <= before
