import pytest

from baton.kvtransfer.errors import TransportUnavailable
from baton.kvtransfer.nccl import communicator_limit as pair_seats
from baton.kvtransfer.nccl.communicator_limit import CommunicatorLimit


@pytest.fixture
def ended() -> list[str]:
    return []


def taken(seats: CommunicatorLimit, ended: list[str], *who: str) -> None:
    for each in who:
        seats.take(each, lambda each=each: ended.append(each))


async def test_the_longest_idle_makes_room(monkeypatch: pytest.MonkeyPatch, ended: list[str]) -> None:
    monkeypatch.setattr(pair_seats, "IDLE_S", 0.0)
    seats = CommunicatorLimit(3)
    taken(seats, ended, "a", "b", "c")
    for each in ("b", "a", "c", "b"):
        seats.rest(each)
    seats.use("a")
    taken(seats, ended, "d")
    assert ended == ["c"]  # a is in use, b has rested since
    seats.leave("d")
    taken(seats, ended, "e")
    assert ended == ["c"]


async def test_what_is_in_use_or_was_just_now_is_not_ended(ended: list[str]) -> None:
    seats = CommunicatorLimit(2)
    taken(seats, ended, "a", "b")
    seats.rest("a")  # but only now
    with pytest.raises(TransportUnavailable, match="all 2 communicators are in use"):
        taken(seats, ended, "c")
    assert not ended
    seats.leave("a")
    seats.leave("a")
    taken(seats, ended, "c")
    seats.rest("nobody")
    with pytest.raises(TransportUnavailable):
        taken(seats, ended, "d")
