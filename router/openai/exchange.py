"""One HTTP request and its answer, straight on the server's interface: nothing stands between that costs time."""

import uuid
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from baton.router.client import ANYBODY, Client
from baton.router.openai.disconnect import ClientGone, ClientWatch
from baton.rpc.names import is_name

EVENT_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
JSON_HEADER = (b"content-type", b"application/json")


def new_id(given: str) -> str:
    """The id of a request: the client's own if it has one."""
    return given if is_name(given) else uuid.uuid4().hex


class Exchange(Protocol):
    """One request and its answer."""

    request_id: str
    client: Client  # who asks; nobody known until the route has looked

    @property
    def headers(self) -> Mapping[str, str]:
        """By name in lower case; the first of several of a name."""
        ...

    @property
    def started(self) -> bool:
        """Whether the answer's head is out."""
        ...

    async def read(self, max_bytes: int) -> bytes:
        """The body. Raises HTTPException (413) for a larger one, before it is held in memory, or ClientGone."""
        ...

    def watch(self) -> AbstractAsyncContextManager[object]:
        """A context in which the current task ends with ClientGone when the client goes away; once the body is read."""
        ...

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Sends a whole answer: JSON, or nothing."""
        ...

    async def begin_events(self, headers: Mapping[str, str]) -> None:
        """Sends the head of a stream of events."""
        ...

    async def send_events(self, events: bytes, last: bool = False) -> None:
        """Sends events. Raises ClientGone."""
        ...


class AsgiExchange:
    """An exchange over ASGI, which any server speaks."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers = read_headers(scope["headers"])
        self.request_id = new_id(self.headers.get("x-request-id", ""))
        self.client = ANYBODY
        self.started = False
        self._receive = receive
        self._send = send

    async def read(self, max_bytes: int) -> bytes:
        """The body. Raises HTTPException (413) for a larger one, before it is held in memory."""
        check_size(announced_size(self.headers), max_bytes)
        parts: list[bytes] = []
        num_bytes = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            num_bytes += len(part)
            check_size(num_bytes, max_bytes)
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def watch(self) -> ClientWatch:
        """A context in which the current task ends with ClientGone when the client goes away; once the body is read."""
        return ClientWatch(self._receive)

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Sends a whole answer: JSON, or nothing."""
        head = [(b"content-length", b"%d" % len(body)), *_encoded(headers or {})]
        if body:
            head.append(JSON_HEADER)
        await self._start(status, head)
        await self._deliver(body, more=False)

    async def begin_events(self, headers: Mapping[str, str]) -> None:
        """Sends the head of a stream of events."""
        await self._start(200, [*EVENT_HEADERS, *_encoded(headers)])

    async def send_events(self, events: bytes, last: bool = False) -> None:
        """Sends events. Raises ClientGone."""
        await self._deliver(events, more=not last)

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        headers += _encoded(self.client.headers())
        headers.append((b"x-request-id", self.request_id.encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _deliver(self, body: bytes, more: bool) -> None:
        try:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except OSError as error:  # servers may say so that the client is gone
            raise ClientGone from error


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


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
