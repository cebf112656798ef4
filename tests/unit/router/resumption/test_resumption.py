"""Positions of clients, and identities of resumable requests."""

import pytest

from baton.engine.errors import InvalidRequest
from baton.router.auth.api_key import ApiKey
from baton.router.auth.client import ANONYMOUS, Client
from baton.router.http.headers import position_of, read_resumption
from baton.router.resumption.resumption import OutputTally, Position, Resumption, checksum

BODY = b'{"prompt": "a"}'
FIRST = {"x-request-id": "r-1", "x-baton-resumable": "true"}


def again(value: str, request_id: str = "r-1") -> dict[str, str]:
    return {**FIRST, "x-request-id": request_id, "x-baton-resume": value}


def test_a_position_does_not_depend_on_the_split_into_deltas() -> None:
    one, other = OutputTally(2), OutputTally(2)
    one.add(0, [1, 2, 70000])
    one.add(1, [5])
    other.add(1, [5])
    for token_id in (1, 2, 70000):
        other.add(0, [token_id])
    assert one.position() == other.position()
    assert str(one.position()) == "3,1:45647a78"  # every version of the router must have the same
    assert one.position().agrees_with([checksum([1, 2, 70000]), checksum([5])])
    assert not one.position().agrees_with([checksum([1, 2, 70001]), checksum([5])])
    assert not one.position().agrees_with([checksum([1, 2]), checksum([5])])
    assert Position((3, 1)).agrees_with([checksum([1, 2, 70001]), checksum([5])])
    other.add(1, [])
    assert other.is_at(Position((3, 1)))
    other.add(1, [6])
    assert not other.has_reached(one.position())


def test_a_request_is_named_by_its_client_its_id_and_its_body() -> None:
    names = [
        Resumption.of("me", "r-1", BODY, None),
        Resumption.of("you", "r-1", BODY, None),
        Resumption.of("me", "r-2", BODY, None),
        Resumption.of("me", "r-1", b"{}", None),
        Resumption.of("m", "er-1", BODY, None),
    ]
    assert len({each.key(0) for each in names} | {names[0].key(1)}) == 6
    assert len({each.seed(0) for each in names} | {names[0].seed(1)}) == 6
    assert all(0 <= each.seed(0) < 1 << 63 for each in names)
    assert Resumption.of("me", "r-1", BODY, Position((3,), "00000000")).key(0) == names[0].key(0)


def test_headers() -> None:
    assert read_resumption({"x-request-id": "r-1"}, ANONYMOUS, BODY) is None
    assert read_resumption({**FIRST, "x-baton-resumable": "false"}, ANONYMOUS, BODY) is None
    first = read_resumption(FIRST, ANONYMOUS, BODY)
    assert first is not None
    assert first.position is None
    for value, position in {
        "r-1; tokens=0": Position((0,)),
        "r-1;tokens=17:9f3c01aa": Position((17,), "9f3c01aa"),
        "r-1; tokens=17,4,0:77ab01cd": Position((17, 4, 0), "77ab01cd"),
    }.items():
        assert read_resumption(again(value), ANONYMOUS, BODY) == Resumption(first.digest, position)
    odd = again("r;1; tokens=3", "r;1")
    assert read_resumption(odd, ANONYMOUS, BODY) is not None


@pytest.mark.parametrize(
    "headers",
    [
        {"x-baton-resumable": "true"},
        {**FIRST, "x-request-id": "with a space"},
        {**FIRST, "x-baton-resumable": "maybe"},
        again("r-2; tokens=0"),
        again("r-1"),
        again("r-1; tokens="),
        again("r-1; tokens=-1"),
        again("r-1; tokens=1:zz"),
        again("r-1; tokens=1,:00000000"),
        again("r-1; tokens=1:00000000; more=1"),
        again("r-1; tokens=" + "9" * 10),
    ],
)
def test_headers_that_are_malformed(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match=r"x-request-id|x-baton-resum"):
        read_resumption(headers, ANONYMOUS, BODY)


def test_requests_of_different_clients_have_different_names() -> None:
    clients = [ANONYMOUS, *(Client(ApiKey(name=name, digest=b"")) for name in ("a", "b"))]
    named = [read_resumption(FIRST, client, BODY) for client in clients]
    named.append(read_resumption({**FIRST, "authorization": "Bearer x"}, ANONYMOUS, BODY))
    assert len({each.digest for each in named if each}) == 4
    renewed = read_resumption({**FIRST, "authorization": "Bearer new"}, clients[1], BODY)
    assert renewed == named[1]  # another secret of the same key


def test_a_position_must_fit_the_request() -> None:
    def position(counts: tuple[int, ...], num_completions: int = 2, stream: bool = True) -> Position | None:
        return position_of(Resumption(b"", Position(counts, "00000000")), num_completions, stream)

    assert position_of(None, 2, True) is None
    assert position_of(Resumption(b""), 2, True) is None
    assert position((0,)) == Position((0, 0))
    assert position((0,), stream=False) == Position((0, 0))
    assert position((4, 0)) == Position((4, 0), "00000000")
    for wrong in ((1,), (1, 2, 3)):
        with pytest.raises(InvalidRequest, match="completions"):
            position(wrong)
    with pytest.raises(InvalidRequest, match="stream"):
        position((4, 0), stream=False)
