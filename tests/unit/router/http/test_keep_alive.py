"""Keep-alive comments of resumable streams."""

import asyncio
from collections.abc import Mapping

import orjson
import pytest

from baton.router.auth.client import ANONYMOUS
from baton.router.errors import Draining, Overloaded
from baton.router.http.event_stream import COMMENT, EventStream, kept_alive
from baton.router.http.exchange import ClientGone
from baton.router.http.headers import RESPONSE_HEADERS
from baton.router.resumption.resumption import Resumption
from baton.router.tracing.request_trace import RequestTrace
from baton.rpc.tracing.context import TraceContext
from tests.unit.router.rigs.running_router import until

SOON_S, NEVER_S = 0.005, 1000.0


class RecordingExchange:
    """An exchange that records what is sent; its client never lags."""

    is_behind = False

    def __init__(self, resumption: Resumption | None = None) -> None:
        self.resumption = resumption
        self.request_id, self.client = "request", ANONYMOUS
        self.trace = RequestTrace("chat", "request", TraceContext(1, 2, is_sampled=False), None)
        self.address, self.upload, self.refusal, self.disconnected = "", None, None, False
        self.heads: list[Mapping[str, str]] = []
        self.sent: list[bytes] = []
        self.is_over = False

    @property
    def started(self) -> bool:
        return bool(self.heads)

    async def begin_events(self, headers: Mapping[str, str], source: object) -> None:
        self.heads.append(headers)

    async def send_events(self, events: bytes, last: bool = False) -> None:
        self.sent.append(events)
        self.is_over = last


async def test_a_silent_stream_has_headers_and_then_comments() -> None:
    exchange = RecordingExchange(Resumption(b""))
    async with kept_alive(exchange, True, SOON_S) as alive:  # type: ignore[arg-type]  # it needs no body
        await until(lambda: len(exchange.sent) >= 3)
        await alive.begin_events({"x-baton-decode": "decode-0"}, EventStream(alive, lambda _: b""))  # too late
        await alive.send_events(b"data: 1\n\n")
        await alive.send_events(b"data: 2\n\n", last=True)
        num_sent = len(exchange.sent)
        await asyncio.sleep(5 * SOON_S)
        assert len(exchange.sent) == num_sent
    assert exchange.heads == [RESPONSE_HEADERS]
    assert [each for each in exchange.sent if each != COMMENT] == [b"data: 1\n\n", b"data: 2\n\n"]
    assert exchange.sent[0] == COMMENT


async def test_an_error_is_an_event_only_after_the_headers() -> None:
    exchange = RecordingExchange(Resumption(b""))
    with pytest.raises(Overloaded):
        async with kept_alive(exchange, True, NEVER_S):  # type: ignore[arg-type]  # it needs no body
            raise Overloaded("full", 1)
    assert not exchange.sent
    async with kept_alive(exchange, True, SOON_S):  # type: ignore[arg-type]  # it needs no body
        await until(lambda: exchange.started)
        raise Draining("the router is shutting down")
    assert exchange.is_over
    assert orjson.loads(exchange.sent[-1].removeprefix(b"data: "))["error"]["code"] == "router_draining"
    assert exchange.trace.root.error == "Draining"


async def test_a_disconnect_is_not_reported_as_an_error_of_the_stream() -> None:
    exchange = RecordingExchange(Resumption(b""))

    async def leave() -> None:
        async with kept_alive(exchange, True, SOON_S):  # type: ignore[arg-type]  # it needs no body
            await until(lambda: exchange.started)
            raise ClientGone

    with pytest.raises(ClientGone):
        await leave()
    assert set(exchange.sent) <= {COMMENT}


@pytest.mark.parametrize(("resumption", "stream"), [(None, True), (Resumption(b""), False)])
async def test_other_responses_are_left_alone(resumption: Resumption | None, stream: bool) -> None:
    exchange = RecordingExchange(resumption)
    async with kept_alive(exchange, stream, SOON_S) as same:  # type: ignore[arg-type]  # it needs no body
        assert same is exchange
