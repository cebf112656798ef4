"""A session merges what came since the last message."""

import asyncio

from baton.decode_worker.router_session import RouterSession
from baton.protos import worker_pb2


def delta(name: str) -> worker_pb2.RequestDelta:
    return worker_pb2.RequestDelta(request_id=name)


async def test_news_are_merged_and_kept_in_order() -> None:
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


async def test_news_before_the_end_are_told() -> None:
    session = RouterSession("1")
    session.add(delta("a"))
    session.close()
    assert [[each.request_id for each in message.deltas] async for message in session.messages()] == [["a"]]
