"""An exchange that stores the response in front of its end."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager

from baton.router.admission.body_budget import Upload
from baton.router.auth.client import Client
from baton.router.http.exchange import EventSource, Exchange
from baton.router.resumption.resumption import Resumption

STORED = "x-baton-stored"  # header of whole responses


class StoringExchange:
    """Exchange that waits for `store` in front of a whole response or the last event.

    A client that has received the id of a complete response can therefore continue it. The response of a client that
    has disconnected by then is not stored.
    """

    def __init__(self, exchange: Exchange, store: Callable[[], Awaitable[bool]]) -> None:
        """`store` returns whether the response was stored."""
        self._exchange = exchange
        self._store = store
        self.request_id: str = exchange.request_id
        self.client: Client = exchange.client
        self.resumption: Resumption | None = exchange.resumption
        self.address: str = exchange.address
        self.upload: Upload | None = exchange.upload
        self.refusal: Exception | None = exchange.refusal
        self.disconnected: bool = exchange.disconnected

    @property
    def headers(self) -> Mapping[str, str]:
        """Request headers by lower-case name; the first one of duplicates."""
        return self._exchange.headers

    @property
    def response_headers(self) -> dict[str, str]:
        """Response headers that are sent with every response."""
        return self._exchange.response_headers

    @property
    def started(self) -> bool:
        """Whether the response headers have been sent."""
        return self._exchange.started

    async def read(self, max_bytes: int) -> bytes | bytearray:
        """Return the body."""
        return await self._exchange.read(max_bytes)

    def forget_body(self) -> None:
        """Free the body."""
        self._exchange.forget_body()

    def watch(self) -> AbstractAsyncContextManager[object]:
        """Return a context in which the current task fails with ClientGone if the client disconnects."""
        return self._exchange.watch()

    async def respond(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Store the response and send it."""
        stored = str(await self._stored()).lower()
        await self._exchange.respond(status, body, {**(headers or {}), STORED: stored})

    async def begin_events(self, headers: Mapping[str, str], source: EventSource) -> None:
        """Send the headers of the event stream."""
        await self._exchange.begin_events(headers, source)

    async def send_events(self, events: bytes, last: bool = False) -> None:
        """Send events, after those in the source; the last ones after the response is stored. Raises ClientGone."""
        if last:
            await self._stored()
        await self._exchange.send_events(events, last)

    @property
    def is_behind(self) -> bool:
        """Whether the client lags."""
        return self._exchange.is_behind

    def count_unread(self) -> None:
        """Count the client's unread output."""
        self._exchange.count_unread()

    async def _stored(self) -> bool:
        return not self._exchange.disconnected and await self._store()
