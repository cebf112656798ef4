"""A real server in the test's loop whose responses the test scripts byte for byte."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

EVENT_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


@dataclass(slots=True)
class ReceivedRequest:
    """A request as it arrived at the server."""

    head: str
    body: bytes
    at_s: float  # by the loop's clock


Script = Callable[[ReceivedRequest, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class ScriptedServer:
    """A running server and the requests so far."""

    port: int = 0
    num_connections: int = 0
    requests: list[ReceivedRequest] = field(default_factory=list)


def chunk(data: bytes) -> bytes:
    """Return one piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def stream_tokens(writer: asyncio.StreamWriter, gaps_s: tuple[float, ...]) -> None:
    """Write a completion with a token after each of the gaps."""
    writer.write(EVENT_HEAD)
    for number, gap_s in enumerate(gaps_s, 1):
        await asyncio.sleep(gap_s)
        reason = b'"length"' if number == len(gaps_s) else b"null"
        writer.write(chunk(b'data: {"choices": [{"text": "x", "finish_reason": %b}]}\n\n' % reason))
    usage = b'{"prompt_tokens": 4, "completion_tokens": %d}' % len(gaps_s)
    writer.write(chunk(b'data: {"choices": [], "usage": %b}\n\ndata: [DONE]\n\n' % usage) + LAST_CHUNK)


@asynccontextmanager
async def scripted_server(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedServer]:
    """Serve until the end of the block; a script that closes the writer ends its connection."""
    served = ScriptedServer()
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(task := asyncio.current_task())  # type: ignore[arg-type]  # there is one
        served.num_connections += 1
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:")
                )
                request = ReceivedRequest(head, await reader.readexactly(length), asyncio.get_running_loop().time())
                served.requests.append(request)
                await script(request, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return  # the client disconnected, or the test has ended
        finally:
            writer.close()
            handlers.discard(task)  # type: ignore[arg-type]  # there is one

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        await server.wait_closed()
