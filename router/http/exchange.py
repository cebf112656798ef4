"""One HTTP request and its answer, straight on the server's interface: nothing stands between that costs time."""

import uuid
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from starlette.exceptions import HTTPException

from baton.router.admission.body_budget import Upload
from baton.router.auth.client import Client
from baton.router.resumption.resumption import Resumption
from baton.settings.names import is_name


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


def new_id(given: str) -> str:
    """The id of a request: the client's own if it has one."""
    return given if is_name(given) else uuid.uuid4().hex


class EventSource(Protocol):
    """Events that wait until the client has taken those before them."""

    @property
    def num_bytes(self) -> int:
        """How much waits."""
        ...

    def take(self) -> bytes:
        """Return all events that wait."""
        ...


class Exchange(Protocol):
    """One request and its answer. Sending never waits for the client: the exchange keeps what it has not taken."""

    request_id: str
    client: Client  # who asks; nobody known until the route has looked
    resumption: Resumption | None  # of a resumable request, once its body is here
    address: str  # of the client or the proxy in front of it; empty if unknown
    upload: Upload | None  # once the head has let the request in
    refusal: Exception | None  # why the body is not read; raised by `read`
    disconnected: bool  # the client is known to be gone

    @property
    def headers(self) -> Mapping[str, str]:
        """By name in lower case; the first of several of a name."""
        ...

    @property
    def started(self) -> bool:
        """Whether the answer's head is out."""
        ...

    async def read(self, max_bytes: int) -> bytes | bytearray:
        """The body. Raises HTTPException (413) for a larger one, before it is held in memory, or ClientGone."""
        ...

    def forget_body(self) -> None:
        """Hold nothing of the body any more, and count it no longer: its prompt has been tokenised."""
        ...

    def watch(self) -> AbstractAsyncContextManager[object]:
        """A context in which the current task ends with ClientGone when the client goes away; once the body is read."""
        ...

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Sends a whole answer: JSON, or nothing."""
        ...

    async def begin_events(self, headers: Mapping[str, str], source: EventSource) -> None:
        """Sends the head of a stream of events; `source` is asked for more when a client that was behind caught up."""
        ...

    async def send_events(self, events: bytes, last: bool = False) -> None:
        """Sends events, behind those of the source. Raises ClientGone."""
        ...

    @property
    def is_behind(self) -> bool:
        """Whether the client has yet to take what it was sent: further events should wait in the source."""
        ...

    def count_unread(self) -> None:
        """Count what waits for the client, after the source got more. May end the exchange."""
        ...


def read_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by their names, which are in lower case; the first of several of a name."""
    headers: dict[str, str] = {}
    for name, value in raw:
        headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return headers


def announced_size(headers: Mapping[str, str]) -> int:
    """The body's length as the client says it; 0 if it does not."""
    announced = headers.get("content-length", "0")
    return int(announced) if announced.isdigit() else 0


def check_size(num_bytes: int, max_bytes: int) -> None:
    """Raises HTTPException (413) for a body that is too large."""
    if num_bytes > max_bytes:
        raise HTTPException(413, f"the body is over the limit of {max_bytes} bytes")
