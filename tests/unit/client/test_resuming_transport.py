"""Streams through the transports, from routers that fail in scripted ways."""

import asyncio

import httpx
import pytest

from baton.client import AsyncResumingTransport, ResumingTransport
from tests.unit.client.scripted_router import (
    COMMENT,
    EXPECTED,
    NUM_TOKENS,
    PATH,
    WHOLE,
    Action,
    Cut,
    Fail,
    Forget,
    Hang,
    Refuse,
    ScriptedRouter,
    Whole,
    position,
    scripted_router,
    stream_behind,
)

BODY = {"messages": [], "stream": True}
TAKEN_OVER = {"message": "the request was taken over by another router", "code": 409}
DRAINING = {"message": "the router is shutting down", "code": "router_draining"}
TWO_TOKENS = len(stream_behind(0, 2))
NUM_AT_ONCE = 64


def _client(url: str, **options: object) -> httpx.AsyncClient:
    inner = httpx.AsyncHTTPTransport(verify=False)  # reads no certificates, which takes 20 ms
    return httpx.AsyncClient(base_url=url, transport=AsyncResumingTransport(inner, **options), timeout=20)  # type: ignore[arg-type]


async def _read(router: ScriptedRouter, **options: object) -> bytes:
    async with _client(router.url, **options) as client:
        response = await client.post(PATH, json=BODY)
        assert response.status_code == 200
        return response.content


def _positions(router: ScriptedRouter) -> list[str]:
    return [request.headers.get("x-baton-resume", "").partition("tokens=")[2] for request in router.requests]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
async def test_a_stream_without_a_loss_equals_one_without_the_protocol(newline: bytes) -> None:
    async with scripted_router(Whole(newline)) as router:
        assert await _read(router) == EXPECTED.replace(b"\n", newline)
        (request,) = router.requests
        assert request.headers["x-baton-resumable"] == "true"
        assert len(request.headers["x-request-id"]) == 32
        assert "x-baton-resume" not in request.headers


@pytest.mark.parametrize(("aborts", "step"), [(False, 7), (True, 9)])
async def test_a_stream_may_be_cut_anywhere(aborts: bool, step: int) -> None:
    slots = asyncio.Semaphore(NUM_AT_ONCE)

    async def cut_after(num_bytes: int, client: httpx.AsyncClient) -> None:
        async with slots:
            response = await client.post(PATH, json=BODY, headers={"x-request-id": str(num_bytes)})
            assert response.content == EXPECTED, num_bytes

    cuts = {str(num_bytes): Cut(num_bytes, aborts) for num_bytes in range(0, len(stream_behind(0)), step)}
    async with scripted_router() as router, _client(router.url) as client:
        router.first_actions.update(cuts)
        await asyncio.gather(*(cut_after(cut.num_bytes, client) for cut in cuts.values()))
    first = {
        request.headers["x-request-id"]: request
        for request in router.requests
        if "x-baton-resume" not in request.headers
    }
    second = {
        request.headers["x-request-id"]: request for request in router.requests if "x-baton-resume" in request.headers
    }
    assert first.keys() == cuts.keys()
    assert all(first[key].body == request.body for key, request in second.items())
    if not aborts:  # a reset may overtake bytes
        wanted = {key: f"{key}; tokens={position(_num_whole(int(key)))}" for key in second}
        assert {key: request.headers["x-baton-resume"] for key, request in second.items()} == wanted
        assert second.keys() == cuts.keys()


def _num_whole(num_bytes: int) -> int:
    """Return the number of tokens whose events are complete in so many bytes."""
    return sum(event.startswith(b"id:") for event in stream_behind(0)[:num_bytes].split(b"\n\n")[:-1])


async def test_a_stream_may_be_cut_again_and_again() -> None:
    cuts = [Cut(len(stream_behind(count, count + 1))) for count in range(NUM_TOKENS - 1)]
    async with scripted_router(*cuts, Cut(0), Cut(3)) as router:
        assert await _read(router) == EXPECTED
        assert _positions(router) == ["", *(position(count) for count in (1, 2, 3, 3, 3))]


@pytest.mark.parametrize("num_bytes", [0, 50, TWO_TOKENS, len(stream_behind(0)) - 1])
def test_a_client_without_an_event_loop_resumes_too(num_bytes: int) -> None:
    async def serve(ready: "asyncio.Future[str]", over: asyncio.Event) -> None:
        async with scripted_router(Cut(num_bytes), Refuse(503)) as router:
            ready.set_result(router.url)
            await over.wait()

    def ask(url: str) -> bytes:
        with httpx.Client(base_url=url, transport=ResumingTransport()) as client:
            return client.post(PATH, json=BODY).content

    async def both() -> bytes:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()
        serving = asyncio.create_task(serve(ready, over))
        try:
            return await asyncio.to_thread(ask, await ready)
        finally:
            over.set()
            await serving

    assert asyncio.run(both()) == EXPECTED


@pytest.mark.parametrize(
    "actions",
    [
        [Hang()],
        [Hang(2)],
        [Fail(0, DRAINING)],
        [Fail(2, DRAINING)],
        [Refuse(503), Refuse(502), Refuse(504)],
        [Cut(TWO_TOKENS - 20), Refuse(429, {"retry-after": "0"}), Refuse(503)],
        [Cut(TWO_TOKENS), Fail(2, {"message": "no decode worker", "code": 503}), Forget()],
        [Cut(TWO_TOKENS), Fail(3, TAKEN_OVER), Refuse(409)],
    ],
    ids=str,
)
async def test_temporary_failures_are_retried(actions: list[Action]) -> None:
    async with scripted_router(*actions) as router:
        assert await _read(router, silence_s=0.2) == EXPECTED
        assert len(router.requests) > len(actions)  # a busy machine may be silent too


async def test_comments_keep_a_slow_stream_alive() -> None:
    num_asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_asked
        num_asked += 1
        writer.write(b"HTTP/1.1 200 OK\r\nx-baton-resumable: true\r\ncontent-type: text/event-stream\r\n\r\n")
        for _ in range(16):
            await asyncio.sleep(0.1)
            writer.write(COMMENT)
        writer.write(stream_behind(0))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with _client(url, silence_s=1.5) as client:
            assert (await client.post(PATH, json=BODY)).content == EXPECTED
    assert num_asked == 1


@pytest.mark.parametrize("status", [400, 401, 404, 409, 429, 500])
async def test_other_statuses_reach_the_client(status: int) -> None:
    async with scripted_router(Refuse(status)) as router, _client(router.url) as client:
        response = await client.post(PATH, json=BODY)
        assert (response.status_code, response.json()["error"]["code"]) == (status, status)
        assert len(router.requests) == 1


async def test_a_routers_time_limit_is_not_extended() -> None:
    async with scripted_router(Refuse(504, {"x-request-id": "mine"})) as router, _client(router.url) as client:
        response = await client.post(PATH, json=BODY, headers={"x-request-id": "mine"})
        assert (response.status_code, len(router.requests)) == (504, 1)


@pytest.mark.parametrize("error", [{"message": "no decode worker", "code": 503}, TAKEN_OVER])
async def test_other_errors_in_a_stream_reach_the_client(error: dict[str, object]) -> None:
    async with scripted_router(Fail(2, error)) as router:
        assert str(error["message"]).encode() in (await _read(router)).splitlines()[-2]
        assert len(router.requests) == 1


async def test_a_refused_resume_ends_the_stream() -> None:
    async with scripted_router(Cut(TWO_TOKENS - 20), Refuse(409, code="resume_failed")) as router:
        with pytest.raises(httpx.RemoteProtocolError, match=r"peer closed connection.* status 409: .*refused"):
            await _read(router)


async def test_the_first_error_is_raised_if_no_router_returns() -> None:
    async with scripted_router(Cut(TWO_TOKENS - 20), *[Refuse(503)] * 20) as router:
        with pytest.raises(httpx.RemoteProtocolError, match=r"peer closed connection.* gave up after [0-9]+ failures"):
            await _read(router, max_outage_s=0.5)
        assert len(router.requests) >= 2
    async with _client(router.url, max_outage_s=0.2) as client:
        with pytest.raises(httpx.ConnectError, match="gave up after"):
            await client.post(PATH, json=BODY)


async def test_the_last_status_is_returned_if_no_router_accepted_the_request() -> None:
    async with scripted_router(*[Refuse(503)] * 20) as router, _client(router.url, max_outage_s=0.2) as client:
        assert (await client.post(PATH, json=BODY)).status_code == 503
        assert len(router.requests) > 1


async def test_another_router_takes_over() -> None:
    async with scripted_router() as other:
        async with (
            scripted_router(Cut(TWO_TOKENS - 20)) as router,
            _client(router.url, routers=[f"{other.url}/v1"]) as client,
        ):
            assert (await client.post(PATH, json=BODY)).content == EXPECTED
            assert (len(router.requests), len(other.requests)) == (1, 1)
            assert other.requests[0].headers["host"] == other.url.removeprefix("http://")
            assert other.requests[0].path == PATH
            assert (await client.post(PATH, json=BODY)).content == EXPECTED  # the lost router is not tried for a while
            assert (len(router.requests), len(other.requests)) == (1, 2)
        async with _client(router.url, routers=[other.url]) as client:  # no server listens there any more
            assert (await client.post(PATH, json=BODY)).content == EXPECTED


@pytest.mark.parametrize("num_bytes", [0, 20])
async def test_a_broken_response_without_stream_is_requested_again(num_bytes: int) -> None:
    async with scripted_router(Cut(num_bytes)) as router, _client(router.url) as client:
        response = await client.post(PATH, json={"stream": False})
        assert response.content == WHOLE
        assert _positions(router) == ["", "0"]


async def test_a_response_without_stream_has_the_clients_time_limit() -> None:
    async with scripted_router(Hang()) as router, _client(router.url, silence_s=0.01) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(PATH, json={"stream": False}, timeout=0.3)
        assert len(router.requests) == 1


async def test_a_router_without_the_protocol_is_passed_through() -> None:
    async with scripted_router(Forget()) as router:
        assert await _read(router) == stream_behind(0)


async def test_other_requests_pass_unchanged() -> None:
    async with scripted_router(Cut(0)) as router, _client(router.url) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/tokenize", json={"stream": True})
        (request,) = router.requests
        assert not {"x-baton-resumable", "x-request-id"} & set(request.headers)


async def test_the_end_of_a_response_ends_its_connection() -> None:
    async with scripted_router(Cut(TWO_TOKENS - 20), Hang(3)) as router, _client(router.url) as client:
        async with client.stream("POST", PATH, json=BODY) as response:
            text = b""
            async for chunk in response.aiter_raw():
                text += chunk
                if b"3 " in text:
                    break
            assert router.num_open == 1
        async with asyncio.timeout(5):
            while router.num_open:
                await asyncio.sleep(0.001)
