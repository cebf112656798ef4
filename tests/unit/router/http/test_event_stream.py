"""Deltas of a resumed stream that arrive while its client lags."""

from dataclasses import dataclass, field
from typing import cast

from baton.protos.common_pb2 import PositionLogprobs
from baton.router.generation import CompletionDelta
from baton.router.http.event_stream import EventIds, EventStream
from baton.router.http.exchange import Exchange
from baton.router.resumption.resumption import OutputTally


@dataclass
class SlowClient:
    """An exchange whose client lags until the test lets it catch up."""

    is_behind: bool = True
    sent: list[bytes] = field(default_factory=list)

    async def send_events(self, events: bytes, last: bool = False) -> None:
        self.sent.append(events)

    def count_unread(self) -> None:
        pass


def word(delta: CompletionDelta) -> bytes:
    return f"data: {delta.text}{delta.finish_reason or ''}\n\n".encode()


async def test_an_end_without_tokens_is_sent_to_the_client() -> None:
    tally = OutputTally(1)
    tally.add(0, [1, 2])
    ids, client = EventIds(tally), SlowClient()
    stream = EventStream(cast(Exchange, client), lambda delta: ids.stamped(word(delta), delta))
    await stream.add(CompletionDelta(0, seen=[1, 2]))
    assert stream.num_bytes == 0, "the client has all of it"
    await stream.add(CompletionDelta(0, finish_reason="stop"))
    assert stream.take() == b"data: stop\n\n"


async def test_new_tokens_have_ids_after_the_seen_ones() -> None:
    tally, expected = OutputTally(1), OutputTally(1)
    tally.add(0, [1, 2])
    expected.add(0, [1, 2, 3, 4])
    ids, client = EventIds(tally), SlowClient()
    stream = EventStream(cast(Exchange, client), lambda delta: ids.stamped(word(delta), delta))
    await stream.add(CompletionDelta(0, seen=[1, 2]))
    await stream.add(CompletionDelta(0, text="a", token_ids=[3], seen=[2]))
    await stream.add(CompletionDelta(0, text="b", token_ids=[4], finish_reason="length"))
    assert stream.take() == f"id: {expected.position()}\ndata: ablength\n\n".encode()
    client.is_behind = False
    await stream.add(CompletionDelta(0, finish_reason="stop"))
    assert client.sent == [b"data: stop\n\n"]


async def test_prompt_logprobs_are_encoded_as_they_arrive() -> None:
    worded: list[int] = []

    def note(delta: CompletionDelta) -> bytes:
        worded.append(len(delta.prompt_logprobs))
        return b""

    stream = EventStream(cast(Exchange, SlowClient()), note)
    for count in (2, 3):
        await stream.add(CompletionDelta(0, prompt_logprobs=[PositionLogprobs()] * count))
    assert worded == [2, 3]
    assert stream.num_bytes == 0


async def test_output_logprobs_are_encoded_as_they_arrive() -> None:
    worded: list[str] = []

    def note(delta: CompletionDelta) -> bytes:
        worded.append(delta.text)
        return delta.text.encode()

    stream = EventStream(cast(Exchange, SlowClient()), note)
    await stream.add(CompletionDelta(0, text="a", token_ids=[1]))
    for text in ("b", "c"):
        await stream.add(CompletionDelta(0, text=text, token_ids=[1], logprobs=[PositionLogprobs()]))
    await stream.add(CompletionDelta(0, text="d", finish_reason="stop"))
    assert worded == ["ab", "c"]
    assert stream.take() == b"abcd"
    assert (stream.num_bytes, stream.take()) == (0, b"")
