"""A router that speaks the protocol of resumable streams over real HTTP, and fails as a test wants."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import orjson

COMMENT = b": waiting\n\n"
NUM_TOKENS = 4
PATH = "/v1/chat/completions"


def _chunk(delta: Mapping[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return orjson.dumps({"choices": [choice]})


ROLE = _chunk({"role": "assistant", "content": ""})
TOKENS = [_chunk({"content": f"ö{n} "}, "stop" if n == NUM_TOKENS else None) for n in range(1, NUM_TOKENS + 1)]
END = _chunk({}, "stop")  # of a client that has all tokens
USAGE = orjson.dumps({"choices": [], "usage": {"completion_tokens": NUM_TOKENS}})
WHOLE = orjson.dumps({"id": "chatcmpl-1", "choices": [{"index": 0, "message": {"content": "whole"}}]})
EXPECTED = b"".join(b"data: %b\n\n" % data for data in (ROLE, *TOKENS, USAGE, b"[DONE]"))


def position(count: int) -> str:
    """Return the id of the event with which the client has so many tokens."""
    return f"{count}:{count:08x}" if count else "0"


def stream_behind(count: int, end: int = NUM_TOKENS, newline: bytes = b"\n") -> bytes:
    """Return the events after a position, up to another one or the end of the stream."""
    parts = [COMMENT]
    if not count:
        parts.append(b"data: %b\n\n" % ROLE)
    parts += [
        b"id: %b\ndata: %b\n\n%b" % (position(n).encode(), TOKENS[n - 1], COMMENT) for n in range(count + 1, end + 1)
    ]
    if count == NUM_TOKENS:
        parts.append(b"data: %b\n\n" % END)
    if end == NUM_TOKENS:
        parts.append(b"data: %b\n\ndata: [DONE]\n\n" % USAGE)
    return b"".join(parts).replace(b"\n", newline)


@dataclass(frozen=True, slots=True)
class Whole:
    """A response without a failure; `newline` ends its lines."""

    newline: bytes = b"\n"


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection breaks after so many bytes of the body."""

    num_bytes: int
    aborts: bool = False  # with a reset


@dataclass(frozen=True, slots=True)
class Hang:
    """Nothing is sent after so many tokens; None: not even the headers."""

    num_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """An error event after so many tokens."""

    num_tokens: int
    error: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Refuse:
    """A status without a stream."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    code: object = None  # of its error; None: the status


@dataclass(frozen=True, slots=True)
class Forget:
    """A stream from the first token, by a router without the protocol."""


Action = Whole | Cut | Hang | Fail | Refuse | Forget


@dataclass(slots=True)
class ReceivedRequest:
    """A request as it arrived at the router."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class ScriptedRouter:
    """A router that serves each request by the next action; afterwards without a failure."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self.requests: list[ReceivedRequest] = []
        self.url = ""
        self.num_open = 0  # connections
        self.first_actions: dict[str, Action] = {}  # by request
        self._actions = list(actions)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, for one request."""
        self.num_open += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._respond(await _read(reader), reader, writer)
        finally:
            self.num_open -= 1
            writer.close()

    async def _respond(
        self, request: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.requests.append(request)
        action = self.first_actions.pop(request.headers.get("x-request-id", ""), None)
        action = action or (self._actions.pop(0) if self._actions else Whole())
        resume = request.headers.get("x-baton-resume", "tokens=0").partition("tokens=")[2]
        count = int(resume.split(":")[0])
        assert resume == position(count)
        body = stream_behind(count) if orjson.loads(request.body)["stream"] else WHOLE
        head = "HTTP/1.1 200 OK\r\nx-baton-resumable: true\r\n"
        match action:
            case Whole(newline):
                body = body.replace(b"\n", newline)
            case Hang(None):
                await reader.read()  # until the client disconnects
                return
            case Hang(num_tokens):
                body = stream_behind(count, num_tokens or 0)
            case Fail(num_tokens, error):
                body = stream_behind(count, num_tokens) + b"data: %b\n\n" % orjson.dumps({"error": error})
            case Refuse(status, headers, code):
                head = f"HTTP/1.1 {status} Refused\r\n" + "".join(f"{name}: {headers[name]}\r\n" for name in headers)
                body = orjson.dumps({"error": {"message": "refused", "code": code or status}})
            case Forget():
                head, body = "HTTP/1.1 200 OK\r\n", stream_behind(0)
        kind = "application/json" if body[:1] == b"{" else "text/event-stream"
        head += f"content-type: {kind}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        writer.write(head.encode())
        num_bytes = action.num_bytes if isinstance(action, Cut) else len(body)
        if part := body[:num_bytes]:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        if isinstance(action, Cut):
            await writer.drain()
            if action.aborts:
                writer.transport.abort()
        elif isinstance(action, Hang):
            await reader.read()
        else:
            writer.write(b"0\r\n\r\n")


@asynccontextmanager
async def scripted_router(*actions: Action) -> AsyncIterator[ScriptedRouter]:
    """Yield a router on a free port."""
    router = ScriptedRouter(actions)
    server = await asyncio.start_server(router.serve, "127.0.0.1", 0)
    router.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield router


async def _read(reader: asyncio.StreamReader) -> ReceivedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return ReceivedRequest(first.split(" ")[1], headers, body)
