"""An exchange that forwards to another one: the base of those that change a part of it."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from baton.router.admission.body_budget import Upload
from baton.router.auth.client import Client
from baton.router.http.exchange import EventSource, Exchange
from baton.router.resumption.resumption import Resumption
from baton.router.tracing.request_trace import RequestTrace


class ForwardedExchange:
    """Exchange of a request whose body has been read; see `Exchange`."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.request_id: str = exchange.request_id
        self.client: Client = exchange.client
        self.resumption: Resumption | None = exchange.resumption
        self.trace: RequestTrace | None = exchange.trace
        self.address: str = exchange.address
        self.upload: Upload | None = exchange.upload
        self.refusal: Exception | None = exchange.refusal

    @property
    def disconnected(self) -> bool:
        """Whether the client has disconnected."""
        return self._exchange.disconnected

    @property
    def headers(self) -> Mapping[str, str]:
        """Request headers by lower-case name; the first one of duplicates."""
        return self._exchange.headers

    @property
    def response_headers(self) -> dict[str, str]:
        """Further headers of the response."""
        return self._exchange.response_headers

    @property
    def started(self) -> bool:
        """Whether the response headers have been sent."""
        return self._exchange.started

    async def read(self, max_bytes: int) -> bytes | bytearray:
        """Return the body."""
        return await self._exchange.read(max_bytes)

    def forget_body(self, num_kept: int = 0) -> None:
        """Free the body."""
        self._exchange.forget_body(num_kept)

    def watch(self) -> AbstractAsyncContextManager[object]:
        """Return a context in which the current task fails with ClientGone if the client disconnects."""
        return self._exchange.watch()

    async def respond(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a complete response."""
        await self._exchange.respond(status, body, headers)

    async def begin_events(self, headers: Mapping[str, str], source: EventSource) -> None:
        """Send the headers of the event stream."""
        await self._exchange.begin_events(headers, source)

    async def send_events(self, events: bytes, last: bool = False) -> None:
        """Send events, after those in the source. Raises ClientGone."""
        await self._exchange.send_events(events, last)

    @property
    def is_behind(self) -> bool:
        """Whether the client lags."""
        return self._exchange.is_behind

    def count_unread(self) -> None:
        """Count the client's unread output."""
        self._exchange.count_unread()
