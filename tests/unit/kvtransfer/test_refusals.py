import pytest

from baton.kvtransfer import refusals
from baton.kvtransfer.base import PeerId
from baton.kvtransfer.refusals import Refusals

PEER, OTHER = PeerId("peer"), PeerId("other")


def test_a_reason_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(refusals.time, "monotonic", lambda: now_s)
    known, for_ever = Refusals(retry_s=10.0), Refusals(retry_s=None)
    for each in (known, for_ever):
        each.note("nixl", PEER, "no RDMA")
        assert each.reason("nixl", PEER) == "no RDMA"
        assert each.reason("nccl", PEER) is None
        assert each.reason("nixl", OTHER) is None
    now_s = 110.5
    assert known.reason("nixl", PEER) is None
    assert for_ever.reason("nixl", PEER) == "no RDMA"


def test_reasons_are_dropped_for_one_peer() -> None:
    known = Refusals()
    for transport in ("nixl", "nccl"):
        known.note(transport, PEER, "x")
    known.note("nixl", OTHER, "y")
    known.drop(PEER)
    assert [known.reason("nixl", PEER), known.reason("nccl", PEER), known.reason("nixl", OTHER)] == [None, None, "y"]


def test_the_oldest_reasons_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MAX_KNOWN", 3)
    known = Refusals()
    for number in range(4):
        known.note("nixl", PeerId(str(number)), "x")
    assert [known.reason("nixl", PeerId(str(number))) for number in range(4)] == [None, "x", "x", "x"]
