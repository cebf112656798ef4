"""Requests on the wire, as HTTP clients of all kinds send them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from baton.router.http import post_protocol
from baton.router.http.parse_turns import SLICE_BYTES, ParseTurns
from tests.unit.router.rigs.running_router import DEADLINE_S, RunningRouter, running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

BODY = orjson.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3})
STREAM = orjson.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "stream": True})


def request(body: bytes = BODY, version: str = "1.1", length: int | None = None, **headers: str) -> bytes:
    """Return a chat request; underscores in header names become dashes."""
    lines = [f"POST /v1/chat/completions HTTP/{version}", "host: test", "content-type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if "transfer_encoding" not in headers:
        lines.append(f"content-length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Connection:
    """A client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def head(self) -> tuple[int, dict[str, str]]:
        """Return the status and headers of the next response."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:])

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Return the next response: status, headers, body."""
        status, headers = await self.head()
        if "content-length" in headers:
            return status, headers, await self.reader.readexactly(int(headers["content-length"]))
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        assert await self.reader.readexactly(2) == b"\r\n"
        return status, headers, body


@asynccontextmanager
async def connected(router: RunningRouter) -> AsyncIterator[Connection]:
    host, _, port = router.url.removeprefix("http://").rpartition(":")
    async with asyncio.timeout(DEADLINE_S):
        connection = Connection(*await asyncio.open_connection(host, int(port)))
        try:
            yield connection
        finally:
            connection.writer.close()


async def test_one_connection_serves_request_after_request() -> None:
    async with running_router(ScriptedWorker()) as router, connected(router) as connection:
        for body in (BODY, STREAM, BODY, b"{", STREAM):
            connection.writer.write(request(body, x_request_id="mine"))
            status, headers, answer = await connection.answer()
            assert status == (400 if body == b"{" else 200)
            assert headers["x-request-id"] == "mine"
            assert "date" in headers
            assert answer.endswith(b"data: [DONE]\n\n" if body == STREAM else b"}")


HEALTH = b"GET /health HTTP/1.1\r\nhost: test\r\n\r\n"
UPGRADE = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2_settings": "AAMAAABkAAQAAP__"}


async def test_a_pipelined_request_ends_the_connection() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        for first in (request(), request(STREAM), HEALTH):
            for more in (request() + HEALTH, HEALTH[:9], HEALTH * 100):
                async with connected(router) as connection:
                    connection.writer.write(first + more)
                    status, headers, _ = await connection.answer()
                    assert (status, headers["connection"]) == (200, "close")
                    assert await connection.reader.read() == b""
    assert len(worker.commands) == 6


async def test_a_line_break_after_a_body_is_not_a_request() -> None:
    async with running_router(ScriptedWorker()) as router, connected(router) as connection:
        for _ in range(2):
            connection.writer.write(request() + b"\r\n")
            status, headers, _ = await connection.answer()
            assert status == 200
            assert "connection" not in headers


async def test_an_upgrade_header_is_ignored() -> None:
    async with running_router(ScriptedWorker()) as router, connected(router) as connection:
        chunked = request(b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY), transfer_encoding="chunked", **UPGRADE)
        for message in (request(**UPGRADE), request(STREAM, **UPGRADE), chunked, request(), chunked):
            for parts in ([message], [message[:100], message[100:-20], message[-20:]]):
                for part in parts:
                    connection.writer.write(part)
                    await asyncio.sleep(0)
                assert (await connection.answer())[0] == 200
        connection.writer.write(HEALTH.replace(b"host", b"connection: upgrade\r\nupgrade: websocket\r\nhost"))
        assert (await connection.answer())[0] == 200
        connection.writer.write(b"CONNECT other:80 HTTP/1.1\r\nhost: other\r\n\r\n")
        assert (await connection.answer())[0] == 400


async def test_a_body_in_chunks_and_in_single_bytes() -> None:
    async with running_router(ScriptedWorker()) as router, connected(router) as connection:
        chunks = b"".join(b"%x\r\n%b\r\n" % (1, BODY[place : place + 1]) for place in range(len(BODY))) + b"0\r\n\r\n"
        for message in (request(chunks, transfer_encoding="chunked"), request()):
            for place in range(0, len(message), 7):
                connection.writer.write(message[place : place + 7])
                await connection.writer.drain()
                await asyncio.sleep(0)
            assert (await connection.answer())[0] == 200


async def test_a_body_of_many_chunks_is_parsed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    next_s = ParseTurns.next_s

    def noted(self: ParseTurns, num_callbacks: int) -> float:
        turns.append(num_callbacks)
        return next_s(self, num_callbacks)

    monkeypatch.setattr(ParseTurns, "next_s", noted)
    body = BODY + b" " * 50_000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    async with running_router(ScriptedWorker()) as router:
        async with connected(router) as first, connected(router) as second:
            for connection in (first, second):
                connection.writer.write(request(chunks, transfer_encoding="chunked"))
            for connection in (first, second):
                assert (await connection.answer())[0] == 200
                connection.writer.write(request())
                assert (await connection.answer())[0] == 200
        assert len(turns) >= 2 * len(chunks) // SLICE_BYTES - 2
        assert max(turns) <= SLICE_BYTES // 6 + 1
        turns.clear()
        async with connected(router) as connection:
            connection.writer.write(request(BODY + b" " * 500_000))
            assert (await connection.answer())[0] == 200
        assert not turns


async def test_a_refused_body_does_not_keep_its_connection_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_protocol, "DISCARD_S", 0.05)
    async with running_router(ScriptedWorker(), max_body_bytes=2000) as router, connected(router) as connection:
        connection.writer.write(request(b"7d1\r\n" + b" " * 2001, transfer_encoding="chunked"))
        assert (await connection.answer())[0] == 413
        assert await connection.reader.read() == b""
    monkeypatch.setattr(post_protocol, "DISCARD_S", 0.5)
    async with running_router(ScriptedWorker(), max_body_bytes=2000) as router, connected(router) as connection:
        connection.writer.write(request(b" " * 10, length=3000))
        assert (await connection.answer())[0] == 413
        connection.writer.write(b" " * 2990)
        await asyncio.sleep(0.7)  # longer than the limit, which ends with the body
        connection.writer.write(request())
        assert (await connection.answer())[0] == 200


async def test_a_body_over_the_limit_is_rejected_before_it_is_received() -> None:
    async with running_router(ScriptedWorker(), max_body_bytes=2000) as router:
        async with connected(router) as connection:
            connection.writer.write(request(b" " * 10, length=3000))
            assert (await connection.answer())[0] == 413
            connection.writer.write(b" " * 2990 + request())  # the rest of it is read and forgotten
            assert (await connection.answer())[0] == 200
        async with connected(router) as connection:
            connection.writer.write(request(b"7d1\r\n" + b" " * 2001, transfer_encoding="chunked"))
            assert (await connection.answer())[0] == 413


async def test_expect_100_continue_is_answered() -> None:
    async with running_router(ScriptedWorker()) as router, connected(router) as connection:
        connection.writer.write(request(b"", length=len(BODY), expect="100-continue"))
        assert (await connection.head())[0] == 100
        connection.writer.write(BODY)
        assert (await connection.answer())[0] == 200


async def test_connection_close_ends_the_connection() -> None:
    async with running_router(ScriptedWorker()) as router:
        for message in (request(connection="close"), request(STREAM, connection="close"), request(version="1.0")):
            async with connected(router) as connection:
                connection.writer.write(message)
                status, headers, _ = await connection.answer()
                assert (status, headers["connection"]) == (200, "close")
                assert await connection.reader.read() == b""


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat/completions?a=1", "/v1/chat%2Fcompletions"])
@pytest.mark.parametrize("asked", [{}, {"connection": "keep-alive"}, {"origin": "https://a", "expect": "100-continue"}])
async def test_a_stream_over_http_1_0_has_no_chunks_and_ends_with_the_connection(
    path: str, asked: dict[str, str]
) -> None:
    async with running_router(ScriptedWorker(), cors_origins=("*",)) as router:
        async with connected(router) as connection:
            message = request(STREAM, version="1.0", **asked).replace(b"/v1/chat/completions", path.encode())
            connection.writer.write(message)
            status, headers = await connection.head()
            events = await connection.reader.read()
        assert (status, headers["connection"]) == (200, "close")
        assert not {"transfer-encoding", "content-length"} & set(headers)
        assert [line[:5] for line in events.split(b"\n\n")] == [b"data:"] * (events.count(b"data:")) + [b""]
        assert events.endswith(b"data: [DONE]\n\n")
        async with connected(router) as connection:
            connection.writer.write(request(version="1.0", **asked))
            status, headers = await connection.head()
            assert (status, headers["connection"]) == (200, "close")
            assert len(await connection.reader.read()) == int(headers["content-length"])


async def test_a_disconnect_ends_the_stream() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker) as router:
        messages = (request(), request(STREAM), request() + request(), request(STREAM) + HEALTH * 100_000)
        with_query = request().replace(b"completions", b"completions?a")
        for num_gone, message in enumerate((*messages, with_query, with_query + request()), 1):
            async with connected(router) as connection:
                connection.writer.write(message)
                await until(lambda num_gone=num_gone: len(worker.commands) == num_gone)  # type: ignore[misc]
            await until(lambda num_gone=num_gone: len(worker.aborted) == num_gone)  # type: ignore[misc]
    assert len(worker.commands) == len(worker.aborted) == 6


async def test_a_path_with_a_query_is_served() -> None:
    async with running_router(ScriptedWorker()) as router:
        answer = await router.http.post(
            "/v1/chat/completions?version=1", content=BODY, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["finish_reason"] == "length"


async def test_a_stalled_upload_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.router.http.server.KEEP_ALIVE_S", 0.2)
    async with running_router(ScriptedWorker(), max_body_bytes=2000) as router:
        for sent in (b"", request()[:20], request()[:-5], request(BODY, length=3000)):
            async with connected(router) as connection:
                connection.writer.write(sent)
                if sent.endswith(BODY):  # too large: it is answered before it is all there
                    assert (await connection.answer())[0] == 413
                    connection.writer.write(b" ")
                assert await connection.reader.read() == b""


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat/completions?over=asgi"])
async def test_a_large_request_waits_longer_for_its_response_than_an_idle_connection_may(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("baton.router.http.server.KEEP_ALIVE_S", 0.2)
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker) as router:
        large = BODY.replace(b"{", b"{" + b" " * 100_000, 1)
        headers = {"content-type": "application/json"}
        asked = asyncio.ensure_future(router.http.post(path, content=large, headers=headers))
        await until(lambda: worker.commands)
        await asyncio.sleep(0.6)
        assert not asked.done()
        worker.go_on.set()
        assert (await asked).status_code == 200


async def test_a_refused_upload_ends_as_an_idle_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.router.http.server.KEEP_ALIVE_S", 0.2)
    async with running_router(ScriptedWorker(), max_body_bytes=2000) as router, connected(router) as connection:
        connection.writer.write(request(BODY, length=40_000))
        assert (await connection.answer())[0] == 413
        connection.writer.write(b" " * (40_000 - len(BODY)))
        assert await connection.reader.read() == b""
