import random

import pytest

from baton.client.event_reader import Event, EventReader

FIRST = Event(b'data: {"a": 1}\n\n', "1:aa", b'{"a": 1}')
SECOND = Event(b"event: x\r\ndata:two\r\n\r\n", None, b"two")
THIRD = Event(b"data: [DONE]\r\r", "7", b"[DONE]")
STREAM = (
    b': waiting\n\nid: 1:aa\ndata: {"a": 1}\n\n:\n\nevent: x\r\n: note\r\ndata:two\r\n\r\n'
    b"id:7\rdata: [DONE]\r\rdata: cut"
)


@pytest.mark.parametrize("seed", range(20))
def test_events_do_not_depend_on_how_bytes_are_split(seed: int) -> None:
    rng = random.Random(seed)
    reader, rest = EventReader(), STREAM
    events: list[Event] = []
    while rest:
        length = rng.randint(1, 1 + seed)
        events += reader.feed(rest[:length])
        rest = rest[length:]
    assert events == [FIRST, SECOND, THIRD]


def test_a_two_byte_line_end_may_be_split() -> None:
    reader = EventReader()
    assert list(reader.feed(b"data: 1\r\n\r")) == []
    assert list(reader.feed(b"\ndata: 2\r\n\r\n")) == [
        Event(b"data: 1\r\n\r\n", None, b"1"),
        Event(b"data: 2\r\n\r\n", None, b"2"),
    ]


def test_an_incomplete_event_is_ignored() -> None:
    assert list(EventReader().feed(b"data: 1\n")) == []
