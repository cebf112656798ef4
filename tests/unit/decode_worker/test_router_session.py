"""A session merges the deltas since the last message."""

import asyncio

import pytest

from baton.decode_worker import service as router_session
from baton.decode_worker.service import RouterSession
from baton.protos import worker_pb2
from baton.rpc.grpc_options import MAX_MESSAGE_BYTES


def delta(name: str) -> worker_pb2.RequestDelta:
    return worker_pb2.RequestDelta(request_id=name)


async def test_deltas_are_merged_in_order() -> None:
    session = RouterSession("1")
    messages = session.messages()
    session.add(delta("a"))
    session.add(delta("b"))
    first = await anext(messages)
    assert [each.request_id for each in first.deltas] == ["a", "b"]
    waiting = asyncio.ensure_future(anext(messages))
    await asyncio.sleep(0)
    assert not waiting.done()
    session.add(delta("c"))
    assert [each.request_id for each in (await waiting).deltas] == ["c"]


async def test_deltas_before_the_end_are_sent() -> None:
    session = RouterSession("1")
    session.add(delta("a"))
    session.close()
    assert [[each.request_id for each in message.deltas] async for message in session.messages()] == [["a"]]


async def test_a_message_has_a_bounded_size() -> None:
    session = RouterSession("1")
    for number in range(100):
        session.add(worker_pb2.RequestDelta(request_id=f"{number}", token_ids=[1 << 30] * 10_000))  # 50 KB
    session.close()
    messages = [message async for message in session.messages()]
    assert [each.request_id for message in messages for each in message.deltas] == [f"{n}" for n in range(100)]
    assert all(message.ByteSize() <= MAX_MESSAGE_BYTES for message in messages)
    assert len(messages) < 10


@pytest.mark.parametrize("num_tokens", [1, 100_000])
async def test_a_router_that_does_not_read_loses_its_session(
    num_tokens: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(router_session, "MAX_PENDING_BYTES", 2 << 20)
    session = RouterSession("1")
    large = worker_pb2.RequestDelta(request_id="a", token_ids=[1 << 30] * num_tokens)
    num_added = 0
    while not caplog.records:
        session.add(large)
        num_added += 1
    assert num_added * (large.ByteSize() + router_session.DELTA_BYTES) <= (2 << 20) + large.ByteSize() + 1000
    assert [message async for message in session.messages()] == []


async def test_a_router_that_reads_keeps_its_session(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(router_session, "MAX_PENDING_BYTES", 2 << 20)
    session = RouterSession("1")
    messages, num_read = session.messages(), 0
    for number in range(200):
        session.add(worker_pb2.RequestDelta(request_id=f"{number}", token_ids=[1 << 30] * 10_000))
        if number % 20 == 19:  # some of them, so that some are always pending
            num_read += len((await anext(messages)).deltas)
    assert num_read > 150
    assert not caplog.records
