"""One request on the server's interface: body, answer, and clients that go away."""

import asyncio
from collections.abc import Sequence

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message

from baton.router.openai.disconnect import ClientGone
from baton.router.openai.exchange import AsgiExchange


class FakeServer:
    """Gives messages to the application, and keeps those that it sends."""

    def __init__(self, *messages: Message) -> None:
        self.sent: list[Message] = []
        self.more: asyncio.Queue[Message] = asyncio.Queue()
        for message in messages:
            self.more.put_nowait(message)

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    def exchange(self, headers: Sequence[tuple[bytes, bytes]] = ()) -> AsgiExchange:
        return AsgiExchange({"type": "http", "headers": headers}, self.more.get, self.send)


def body(part: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": part, "more_body": more}


GONE: Message = {"type": "http.disconnect"}


async def test_a_body_in_parts() -> None:
    assert await FakeServer(body(b"ab", more=True), body(b"", more=True), body(b"cd")).exchange().read(4) == b"abcd"
    with pytest.raises(HTTPException, match="limit of 3 bytes"):
        await FakeServer(body(b"ab", more=True), body(b"cd", more=True)).exchange().read(3)
    with pytest.raises(HTTPException, match="limit of 3 bytes"):
        await FakeServer().exchange([(b"content-length", b"4")]).read(3)
    with pytest.raises(ClientGone):
        await FakeServer(body(b"ab", more=True), GONE).exchange().read(4)


async def test_a_client_that_goes_away_ends_the_work() -> None:
    server = FakeServer()
    started, ended = asyncio.Event(), False

    async def work() -> None:
        nonlocal ended
        try:
            async with server.exchange().watch():
                started.set()
                await asyncio.Event().wait()
        finally:
            ended = True

    task = asyncio.create_task(work())
    await started.wait()
    server.more.put_nowait(GONE)
    with pytest.raises(ClientGone):
        await task
    assert ended
    assert task.cancelling() == 0


async def test_somebody_elses_cancellation_stays_one() -> None:
    server = FakeServer()
    started = asyncio.Event()

    async def work() -> None:
        async with server.exchange().watch():
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_end_of_the_answer_is_no_departure() -> None:
    server = FakeServer()
    async with server.exchange().watch():
        pass
    server.more.put_nowait(GONE)
    await asyncio.sleep(0)  # a watch that had not ended would cancel this very task
    assert server.more.qsize() == 1


async def test_an_answer_has_its_length_its_type_and_the_requests_id() -> None:
    server = FakeServer()
    exchange = server.exchange([(b"x-request-id", b"mine"), (b"x-request-id", b"second")])
    await exchange.answer(200, b"{}", {"x-more": "1"})
    head, rest = server.sent
    assert dict(head["headers"]) == {
        b"content-length": b"2", b"content-type": b"application/json", b"x-more": b"1", b"x-request-id": b"mine",
    }  # fmt: skip
    assert (rest["body"], rest["more_body"]) == (b"{}", False)
    assert FakeServer().exchange([(b"x-request-id", b"has spaces")]).request_id.isalnum()


async def test_a_broken_connection_is_a_client_that_is_gone() -> None:
    server = FakeServer()

    async def broken(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise OSError("broken pipe")

    exchange = AsgiExchange({"type": "http", "headers": []}, server.more.get, broken)
    await exchange.begin_events({})
    with pytest.raises(ClientGone):
        await exchange.send_events(b"data: 1\n\n")
