"""One HTTP request and its response, directly on the server's interface: ASGI in between would cost time."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from baton.router.admission.body_budget import Upload
from baton.router.auth.client import Client
from baton.router.resumption.resumption import Resumption
from baton.router.tracing.request_trace import RequestTrace


class ClientGone(Exception):
    """The client closed the connection, so no response is possible."""


class EventSource(Protocol):
    """Events that wait until the client has read the earlier ones."""

    @property
    def num_bytes(self) -> int:
        """Size of the waiting events."""
        ...

    def take(self) -> bytes:
        """Remove and return all waiting events."""
        ...


class Exchange(Protocol):
    """One request and its response. Sending never waits for the client: the exchange buffers unread output."""

    request_id: str
    client: Client  # anonymous until the route has authenticated the request
    resumption: Resumption | None  # of a resumable request, once its body has been read
    trace: RequestTrace | None  # None: the request is not recorded
    address: str  # of the client or the proxy in front of it; empty if unknown
    upload: Upload | None  # set once the headers have been accepted
    refusal: Exception | None  # why the body is not read; raised by `read`

    @property
    def disconnected(self) -> bool:
        """Whether the client has disconnected."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Request headers by lower-case name; the first one of duplicates."""
        ...

    @property
    def response_headers(self) -> dict[str, str]:
        """Further headers of the response, which the route adds before it responds."""
        ...

    @property
    def started(self) -> bool:
        """Whether the response headers have been sent."""
        ...

    async def read(self, max_bytes: int) -> bytes | bytearray:
        """Return the body. Raises HTTPException (413) for a larger one before it is buffered, or ClientGone."""
        ...

    def forget_body(self, num_kept: int = 0) -> None:
        """Free the body and release its bytes in the budget, once the prompt has been tokenised.

        `num_kept`: bytes of tokens that the request holds instead and that count until it ends. Raises Overloaded.
        """
        ...

    def watch(self) -> AbstractAsyncContextManager[object]:
        """Return a context in which the current task fails with ClientGone if the client disconnects.

        Call it after the body has been read.
        """
        ...

    async def respond(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a complete response: JSON unless `headers` has another content type, or empty."""
        ...

    async def begin_events(self, headers: Mapping[str, str], source: EventSource) -> None:
        """Send the headers of an event stream. When a lagging client catches up, events are taken from `source`."""
        ...

    async def send_events(self, events: bytes, last: bool = False) -> None:
        """Send events, after those in the source. Raises ClientGone."""
        ...

    @property
    def is_behind(self) -> bool:
        """Whether the client lags: it has unread output, and further events should wait in the source."""
        ...

    def count_unread(self) -> None:
        """Count the client's unread output, after the source has grown. May abort the exchange."""
        ...
