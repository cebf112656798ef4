"""Uploads: what they hold, and when it is released."""

import asyncio
import gc
import gzip
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from baton.router.http import body_reader, post_protocol
from baton.router.http.body_reader import gunzip
from baton.router.http.post_exchange import PostExchange
from tests.faults.attacks import (
    MESSAGE,
    Attacker,
    aborted_uploads,
    attacker,
    head,
    held_uploads,
    poison_bodies,
    slow_bodies,
)
from tests.unit.router.api_keys import TestKeys, bearer
from tests.unit.router.rigs.running_router import DEADLINE_S, RunningRouter, running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

BODY = orjson.dumps({"messages": [MESSAGE], "max_tokens": 3})
JSON = {"content-type": "application/json"}
KIB = 1 << 10


def address_of(router: RunningRouter) -> str:
    return router.url.removeprefix("http://")


async def held_bytes(router: RunningRouter) -> int:
    page = (await router.http.get("/metrics")).text
    [line] = [line for line in page.splitlines() if line.startswith("baton:router_body_bytes{")]
    return int(float(line.rpartition(" ")[2]))


async def until_held(router: RunningRouter, num_bytes: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await held_bytes(router) != num_bytes:
            await asyncio.sleep(0.005)


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> "weakref.WeakSet[PostExchange]":
    """Those that live."""
    made: weakref.WeakSet[PostExchange] = weakref.WeakSet()
    begin = PostExchange.__init__

    def remember(self: PostExchange, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]  # as they come
        made.add(self)

    monkeypatch.setattr(PostExchange, "__init__", remember)
    return made


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (head(100 * KIB) + b"x" * 90 * KIB, None),
        (head(3000 * KIB) + b"x" * 90 * KIB, 413),
        (head(100, headers={"content-type": "text/plain"}) + b"x" * 50, 415),
        (head(1) + b"{", 400),
        (head(len(BODY)) + BODY, 200),
    ],
    ids=["on its way", "too large", "no JSON", "invalid", "served"],
)
async def test_an_exchange_ends_with_its_connection(
    exchanges: "weakref.WeakSet[PostExchange]", message: bytes, status: int | None
) -> None:
    async with running_router(ScriptedWorker(), max_body_bytes=1 << 20) as router:
        gc.collect()
        gc.disable()
        try:
            async with asyncio.timeout(DEADLINE_S):
                async with attacker(address_of(router)) as connection:
                    await connection.send(message)
                    if status is None:
                        await until_held(router, 90 * KIB)
                    else:
                        assert await connection.status() == status
                    assert exchanges
                while exchanges:
                    await asyncio.sleep(0.002)
        finally:
            gc.enable()
        await until_held(router, 0)


async def test_bodies_over_a_clients_budget_are_rejected_during_the_upload() -> None:
    async with running_router(
        ScriptedWorker(), max_body_bytes=100 * KIB, max_client_body_bytes_in_flight=400 * KIB
    ) as router:
        address = address_of(router)
        statuses = await held_uploads(address, num_uploads=12, num_bytes=90 * KIB, num_held=4, time_s=DEADLINE_S)
        assert statuses == {None: 4, 429: 8}
        await until_held(router, 0)
        assert (await router.http.post("/v1/chat/completions", content=BODY, headers=JSON)).status_code == 200


@asynccontextmanager
async def over_budget() -> AsyncIterator[Attacker]:
    """A client whose body was rejected early: it has sent 50 of 100 KiB."""
    options = {"max_body_bytes": 100 * KIB, "max_client_body_bytes_in_flight": 100 * KIB}
    async with asyncio.timeout(DEADLINE_S), running_router(ScriptedWorker(), **options) as router:
        address = address_of(router)
        async with attacker(address) as first, attacker(address) as second:
            await first.send(head(100 * KIB) + b"x" * 90 * KIB)
            await until_held(router, 90 * KIB)
            await second.send(head(100 * KIB) + b"x" * 50 * KIB)
            yield second


async def test_a_refused_body_is_discarded_until_the_client_can_read_the_response() -> None:
    async with over_budget() as client:
        response = await client.reader.readuntil(b"\r\n\r\n")
        assert response.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nretry-after: 1\r\n" in response
        assert b"\r\nconnection: close\r\n" in response
        await client.send(b"x" * 50 * KIB + head(len(BODY)) + BODY)
        body = await client.reader.read()  # which ends: a further request is not served
        assert orjson.loads(body)["error"]["message"].startswith("the client's address is over the limit")


async def test_a_rejected_body_that_does_not_end_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post_protocol, "DISCARD_S", 0.05)
    async with over_budget() as client:
        assert b"429" in await client.reader.read()


async def test_decompressed_bytes_count() -> None:
    async with running_router(
        ScriptedWorker(), max_body_bytes=1 << 20, max_client_body_bytes_in_flight=1 << 20
    ) as router:
        packed = gzip.compress(orjson.dumps({"prompt": "a", "user": " " * 1_000_000}))
        headers = {**JSON, "content-encoding": "gzip"}
        async with attacker(address_of(router)) as first:
            await first.send(head(1 << 20) + b"x" * 100_000)
            await until_held(router, 100_000)
            answer = await router.http.post("/v1/completions", content=packed, headers=headers)
            assert answer.status_code == 429
        await until_held(router, 0)
        answer = await router.http.post("/v1/completions", content=packed, headers=headers)
        assert answer.status_code == 400  # 1,000,000 characters of a user


async def test_many_compressed_bodies_of_one_client_delay_no_other_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, go_on = TestKeys(tmp_path), threading.Event()
    busy, other = bearer(keys.add("busy")), bearer(keys.add("other"))
    packed = gzip.compress(orjson.dumps({"prompt": "a", "max_tokens": 1}))

    def unpack(body: bytes, max_bytes: int) -> bytes:
        assert go_on.wait(DEADLINE_S)
        return gunzip(body, max_bytes)

    monkeypatch.setattr(body_reader, "gunzip", unpack)
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router:
        order: list[dict[str, str]] = []

        async def post(key: dict[str, str]) -> None:
            headers = {**JSON, **key, "content-encoding": "gzip"}
            assert (await router.http.post("/v1/completions", content=packed, headers=headers)).status_code == 200
            order.append(key)

        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(post(busy))
            await until_held(router, 20 * len(packed))
            group.create_task(post(other))
            await until_held(router, 21 * len(packed))
            go_on.set()
        assert order.index(other) < 10


async def test_a_body_is_forgotten_while_its_request_is_served() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        body = {"messages": [MESSAGE], "max_tokens": 100, "stream": True}
        for path, more in (("/v1/chat/completions", {}), ("/v1/completions", {"prompt": "hello"})):
            if more:
                body = {"max_tokens": 100, "stream": True, **more}
            async with router.http.stream("POST", path, json=body) as answer:
                assert answer.status_code == 200
                await until_held(router, 0)


async def test_a_keys_uploads_are_some_of_its_requests(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    limited = bearer(keys.add("limited", max_inflight=4))
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router:
        statuses = await held_uploads(
            address_of(router), num_uploads=20, num_bytes=90 * KIB, headers=limited, num_held=4, time_s=DEADLINE_S
        )
        assert statuses == {None: 4, 429: 16}
        await until_held(router, 0)
        path = "/v1/chat/completions"
        answers = [await router.http.post(path, content=BODY, headers=JSON | limited) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200] * 5


async def test_a_key_that_used_up_its_rate_uploads_nothing(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    limited = bearer(keys.add("limited", requests_per_minute=1))
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router:
        statuses = await held_uploads(
            address_of(router), num_uploads=3, num_bytes=90 * KIB, headers=limited, num_held=1, time_s=DEADLINE_S
        )
        assert statuses == {None: 1, 429: 2}


async def test_a_slow_body_is_refused() -> None:
    async with running_router(ScriptedWorker(), body_timeout_s=0.3) as router:
        assert await slow_bodies(address_of(router), num_clients=10, time_s=DEADLINE_S) == {408: 10}
        await until_held(router, 0)


async def test_a_slow_head_is_refused() -> None:
    async with (
        asyncio.timeout(DEADLINE_S),
        running_router(ScriptedWorker(), body_timeout_s=0.2) as router,
        attacker(address_of(router)) as connection,
    ):
        status = asyncio.create_task(connection.status())
        for byte in b"POST /v1/chat/completions HTTP/1.1\r\nx: " + b"y" * 1000:
            await connection.send(bytes([byte]))
            await asyncio.wait((status,), timeout=0.01)
            if status.done():
                break
        assert await status == 408


async def test_a_large_body_on_a_slow_link_is_accepted() -> None:
    async with (
        asyncio.timeout(DEADLINE_S),
        running_router(ScriptedWorker(), body_timeout_s=0.2) as router,
        attacker(address_of(router)) as connection,
    ):
        body = BODY + b" " * 320 * KIB  # for which it has 20 s more
        await connection.send(head(len(body)))
        for place in range(0, len(body), 64 * KIB):
            await connection.send(body[place : place + 64 * KIB])
            await asyncio.sleep(0.1)
        assert await connection.status() == 200


async def test_attacks_leave_nothing_in_memory() -> None:
    async with running_router(ScriptedWorker()) as router:
        await aborted_uploads(address_of(router), num_uploads=3)
        statuses = await poison_bodies(address_of(router), ["token ids", "a field of lists", "invalid biases"])
        assert set(statuses.values()) <= {200, 400, 413}
        await until_held(router, 0)
