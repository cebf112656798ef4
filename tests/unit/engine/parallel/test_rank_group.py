"""Ranks that wait for each other: what ends a wait, and epochs that fail to form."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import Work

from baton.engine.errors import EngineEnded, GroupBroken
from baton.engine.parallel import rank_connections, rank_group
from baton.engine.parallel.exchange import POLL_S, Exchange
from baton.engine.parallel.group_view import GroupView
from baton.engine.parallel.rank_group import RankGroup
from tests.unit.engine.group_rig import CPU, HOST, TIMEOUT_S, Group, Member

SOON_S = 2.0  # for a waiting rank to notice a newer epoch, which takes a fifth of a second


class Pair:
    """Two ranks of a group, each on its own thread."""

    def __init__(self) -> None:
        self.group = Group()
        self.ranks = [RankGroup(Member(self.group, name), HOST, CPU) for name in ("rank-0", "rank-1")]
        self.threads = [ThreadPoolExecutor(1) for _ in self.ranks]

    def form(self) -> None:
        """Form the group on both ranks."""
        self.group.set_members("rank-0", "rank-1")
        forming = [thread.submit(ranks.form) for thread, ranks in zip(self.threads, self.ranks, strict=True)]
        for each in forming:
            each.result(TIMEOUT_S)

    def waiting(self) -> "Future[list[list[int]]]":
        """Rank 0 sends a number and waits for one from rank 1, which sends none."""
        pending = self.threads[0].submit(self.ranks[0].gather, [1])
        wait_until(lambda: self.ranks[0].is_waiting)
        return pending

    def close(self) -> None:
        """End all waits and close both ranks."""
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


def test_numbers_are_gathered_in_rank_order(pair: Pair) -> None:
    pair.form()
    pending = pair.waiting()
    assert pair.threads[1].submit(pair.ranks[1].gather, [2]).result(TIMEOUT_S) == [[1], [2]]
    assert pending.result(TIMEOUT_S) == [[1], [2]]
    assert not pair.ranks[0].is_waiting
    assert pair.ranks[0].waited_s > 0


def test_a_delay_is_reported_once_if_a_rank_is_late(pair: Pair) -> None:
    pair.form()
    delays: list[float] = []
    began_s = time.monotonic()
    late = pair.threads[0].submit(pair.ranks[0].gather, [1], lambda: delays.append(time.monotonic() - began_s))
    wait_until(lambda: bool(delays))
    time.sleep(1.5 * POLL_S)
    assert pair.threads[1].submit(pair.ranks[1].gather, [2]).result(TIMEOUT_S) == [[1], [2]]
    assert late.result(TIMEOUT_S) == [[1], [2]]
    assert len(delays) == 1
    assert delays[0] >= POLL_S


def test_a_newer_epoch_ends_a_wait_for_a_live_rank(pair: Pair) -> None:
    """The rank's connections stay open, so only the membership reports the change."""
    pair.form()
    pending = pair.waiting()
    pair.group.set_members("rank-0")
    with pytest.raises(GroupBroken, match="epoch 2 of the group has begun"):
        pending.result(SOON_S)
    assert not pair.ranks[0].is_waiting


def test_a_rank_that_leaves_ends_its_own_wait(pair: Pair) -> None:
    pair.form()
    pending = pair.waiting()
    pair.ranks[0].leave()
    with pytest.raises(GroupBroken, match="this rank has left its group"):
        pending.result(SOON_S)


def test_a_lost_rank_ends_the_wait_of_other_ranks(pair: Pair) -> None:
    """The rank's connections close before the membership reports the loss."""
    pair.form()
    pending = pair.waiting()
    pair.threads[1].submit(pair.ranks[1].drop).result(TIMEOUT_S)
    with pytest.raises(GroupBroken, match="a collective failed"):
        pending.result(SOON_S)


class GpuWork:
    """A collective like NCCL's: a timed wait aborts its communicator on timeout."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.is_aborted = False

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def wait(self, *timeout: timedelta) -> bool:
        self.is_aborted = bool(timeout)
        assert not timeout
        assert self.is_completed(), "the wait would never end, even if the group breaks"
        return self._work.wait()


class OnGpu:
    """The collectives of one rank, as if between GPUs."""

    def __init__(self, pair: Pair, rank: int) -> None:
        self._ranks = pair.ranks[rank]
        self._thread = pair.threads[rank]
        self.begun: list[GpuWork] = []

    def begin(self, number: int) -> "Future[list[int]]":
        """Send a number to both ranks and receive theirs."""
        return self._thread.submit(self._exchange, number)

    def _exchange(self, number: int) -> list[int]:
        sent, received = torch.full((2,), number), torch.zeros(2, dtype=torch.int64)
        work = self._ranks._connected.data.alltoall_base(received, sent, [1, 1], [1, 1], timedelta(seconds=60))
        self.begun.append(GpuWork(work))
        Exchange(self.begun[-1], self._ranks, is_on_gpu=True).wait()  # type: ignore[arg-type]
        return received.tolist()

    def wait_until_waiting(self) -> None:
        wait_until(lambda: self._ranks.is_waiting)


def test_a_gpu_collective_may_take_longer_than_a_poll(pair: Pair) -> None:
    pair.form()
    first, second = OnGpu(pair, 0), OnGpu(pair, 1)
    pending = first.begin(1)
    first.wait_until_waiting()
    time.sleep(2 * POLL_S)
    assert second.begin(2).result(TIMEOUT_S) == [1, 2]
    assert pending.result(TIMEOUT_S) == [1, 2]
    assert not first.begun[0].is_aborted


def test_a_newer_epoch_ends_a_gpu_wait_and_keeps_its_memory_until_the_group_closes(pair: Pair) -> None:
    pair.form()
    first = OnGpu(pair, 0)
    pending = first.begin(1)
    first.wait_until_waiting()
    pair.group.set_members("rank-0")
    with pytest.raises(GroupBroken, match="epoch 2 of the group has begun"):
        pending.result(SOON_S)
    assert pair.ranks[0]._abandoned == first.begun
    pair.threads[0].submit(pair.ranks[0].close).result(TIMEOUT_S)
    assert pair.ranks[0]._abandoned == []


def test_a_lost_rank_ends_the_gpu_wait_of_other_ranks(pair: Pair) -> None:
    pair.form()
    first = OnGpu(pair, 0)
    pending = first.begin(1)
    first.wait_until_waiting()
    pair.threads[1].submit(pair.ranks[1].drop).result(TIMEOUT_S)
    with pytest.raises(GroupBroken, match="a collective failed"):
        pending.result(SOON_S)


def test_work_after_dropping_a_group_does_not_block_the_engine(pair: Pair) -> None:
    pair.form()
    began, may_end = threading.Event(), threading.Event()

    def follow() -> None:
        began.set()
        may_end.wait(TIMEOUT_S)

    ranks, thread = pair.ranks[0], pair.threads[0]
    thread.submit(ranks.drop, follow).result(TIMEOUT_S)
    assert began.wait(TIMEOUT_S)
    assert not ranks.is_formed
    waiting = thread.submit(ranks.wait_for_dropped, TIMEOUT_S)
    assert not waiting.done()
    may_end.set()
    waiting.result(TIMEOUT_S)


def test_torchs_watchdog_does_not_end_the_process() -> None:
    """Torch reads this variable when it creates an NCCL process group."""
    assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "1"


def test_an_epoch_of_too_few_ranks_is_not_joined(caplog: pytest.LogCaptureFixture) -> None:
    group = Group()
    ranks = RankGroup(Member(group, "rank-0"), HOST, CPU, fewest=2)
    other = RankGroup(Member(group, "rank-1"), HOST, CPU, fewest=2)
    group.set_members("rank-0")
    with ThreadPoolExecutor(2) as threads:
        forming = threads.submit(ranks.form)
        try:
            wait_until(lambda: ranks.is_short)
            assert "has 1 of the 2 ranks that it needs" in caplog.text
            group.set_members("rank-0", "rank-1")
            threads.submit(other.form).result(TIMEOUT_S)
            forming.result(TIMEOUT_S)
            assert (ranks.is_short, ranks.view.epoch, ranks.size) == (False, 2, 2)
            assert group.broken == []
        finally:
            for each in (ranks, other):
                each.leave()
    for each in (ranks, other):
        each.close()


def test_a_group_without_a_newer_epoch_is_short_of_ranks_until_one_begins(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rendezvous is lost, and then a rank."""
    monkeypatch.setattr(rank_group, "NO_EPOCH_S", 0.3)
    pair.form()
    ranks = pair.ranks[0]
    began_s = time.monotonic()
    forming = pair.threads[0].submit(ranks.form)
    wait_until(lambda: ranks.is_short)
    short_s = time.monotonic()
    assert short_s - began_s >= 0.3
    assert "no newer one has begun in 0 s: nothing is computed until the rendezvous begins one" in caplog.text
    pair.group.set_members("rank-0")
    forming.result(TIMEOUT_S)
    assert not ranks.is_short
    assert ranks.resumed_s >= short_s  # the watchdog does not count the wait


def test_a_group_that_has_not_started_is_not_short_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_group, "NO_EPOCH_S", 0.0)
    member = CountingMember(Group(), "rank-0")
    ranks = RankGroup(member, HOST, CPU)
    with ThreadPoolExecutor(1) as thread:
        forming = thread.submit(ranks.form)
        wait_until(lambda: member.num_waits > 2)
        assert not ranks.is_short
        ranks.leave()
        with pytest.raises(EngineEnded):
            forming.result(TIMEOUT_S)


class CountingMember(Member):
    """A member that counts its waits for a view."""

    num_waits = 0

    def wait(self, seen: GroupView | None, timeout_s: float) -> GroupView | None:
        self.num_waits += 1
        return super().wait(seen, timeout_s)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("here", "reason"),
    [("rank-0", r"not every member connected in \d s"), ("rank-1", r"rank-0 did not open a store in \d s")],
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
                assert group.changed.wait_for(lambda: len(group.broken) > 1, TIMEOUT_S)  # the rank retries
            group.set_members(here)
            forming.result(TIMEOUT_S)
            assert ranks.size == 1
        finally:
            ranks.leave()
    assert [epoch for epoch, _ in group.broken[:2]] == [1, 2]
    assert re.fullmatch(reason, group.broken[0][1])


def test_a_rank_that_left_forms_no_epoch(pair: Pair) -> None:
    forming = pair.threads[0].submit(pair.ranks[0].form)
    pair.ranks[0].leave()
    with pytest.raises(EngineEnded, match="this rank has left its group"):
        forming.result(SOON_S)


def test_dropped_groups_leave_no_threads() -> None:
    before = set(threading.enumerate())
    pair = Pair()
    for _ in range(3):
        pair.form()
        for thread, ranks in zip(pair.threads, pair.ranks, strict=True):
            thread.submit(ranks.drop).result(TIMEOUT_S)
    pair.close()
    assert set(threading.enumerate()) <= before
