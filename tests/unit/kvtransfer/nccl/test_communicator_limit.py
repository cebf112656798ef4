import pytest

from baton.kvtransfer.errors import TransportUnavailable
from baton.kvtransfer.nccl import communicators as communicator_limit
from baton.kvtransfer.nccl.communicators import CommunicatorLimit


@pytest.fixture
def evicted() -> list[str]:
    return []


def acquire(limit: CommunicatorLimit, evicted: list[str], *peers: str) -> None:
    for peer in peers:
        limit.acquire(peer, lambda peer=peer: evicted.append(peer))


async def test_the_longest_idle_is_evicted(monkeypatch: pytest.MonkeyPatch, evicted: list[str]) -> None:
    monkeypatch.setattr(communicator_limit, "IDLE_S", 0.0)
    limit = CommunicatorLimit(3)
    acquire(limit, evicted, "a", "b", "c")
    for peer in ("b", "a", "c", "b"):
        limit.mark_idle(peer)
    limit.mark_busy("a")
    acquire(limit, evicted, "d")
    assert evicted == ["c"]  # a is busy, and b has become idle again since
    limit.release("d")
    acquire(limit, evicted, "e")
    assert evicted == ["c"]


async def test_busy_and_recently_busy_communicators_are_not_evicted(evicted: list[str]) -> None:
    limit = CommunicatorLimit(2)
    acquire(limit, evicted, "a", "b")
    limit.mark_idle("a")  # but for less than IDLE_S
    with pytest.raises(TransportUnavailable, match="all 2 communicators are in use"):
        acquire(limit, evicted, "c")
    assert not evicted
    limit.release("a")
    limit.release("a")
    acquire(limit, evicted, "c")
    limit.mark_idle("unknown")
    with pytest.raises(TransportUnavailable):
        acquire(limit, evicted, "d")
