"""Compressed bodies: gzip within the limit is accepted, everything else is rejected."""

import gzip
import tracemalloc

import httpx
import orjson
import pytest
from starlette.exceptions import HTTPException

from baton.router.http.body_reader import gunzip
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

PATHS = ["/v1/completions", "/v1/completions?over=asgi"]
BODY = orjson.dumps({"prompt": "hello world", "max_tokens": 3, "seed": 1})
PACKED = gzip.compress(BODY)


async def post(http: httpx.AsyncClient, path: str, content: bytes, encoding: str) -> httpx.Response:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    return await http.post(path, content=content, headers=headers)


@pytest.mark.parametrize("path", PATHS)
async def test_gzip_is_the_same_request(path: str) -> None:
    async with running_router(ScriptedWorker()) as router:
        plain = await post(router.http, path, BODY, "identity")
        assert plain.status_code == 200
        two_members = gzip.compress(BODY[:9]) + gzip.compress(BODY[9:])
        for content, encoding in ((PACKED, "gzip"), (PACKED, "GZIP"), (PACKED, "x-gzip"), (two_members, "gzip")):
            answer = await post(router.http, path, content, encoding)
            assert answer.json()["choices"] == plain.json()["choices"]


@pytest.mark.parametrize("path", PATHS)
async def test_undecodable_bodies_are_rejected(path: str) -> None:
    async with running_router(ScriptedWorker()) as router:
        for encoding in ("br", "zstd", "deflate", "gzip, gzip", "rot13"):
            answer = await post(router.http, path, PACKED, encoding)
            assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "gzip")
            assert "must be gzip" in answer.json()["error"]["message"]
        members = gzip.compress(b"") * 100_000  # each takes time, though there is nothing in it
        for broken in (BODY, b"", PACKED[:-9], PACKED[:-8] + bytes(8), PACKED + b"rest", members + PACKED):
            answer = await post(router.http, path, broken, "gzip")
            assert answer.status_code == 400
            assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", PATHS)
async def test_the_bound_is_that_of_the_decompressed_body(path: str) -> None:
    async with running_router(ScriptedWorker(), max_body_bytes=2000) as router:
        for size, status in ((2000, 200), (2001, 413), (50_000_000, 413)):
            answer = await post(router.http, path, gzip.compress(BODY.ljust(size)), "gzip")
            assert answer.status_code == status
        assert "limit of 2000 bytes" in answer.json()["error"]["message"]


def test_a_gzip_bomb_is_not_decompressed_beyond_the_limit() -> None:
    bomb = gzip.compress(bytes(200 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(HTTPException):
            gunzip(bomb, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
