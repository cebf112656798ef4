"""The supervisor's view of its router."""

import httpx
import pytest

from baton.deployment.local.router_view import view_router

DEEP = b"[" * 100_000


@pytest.mark.parametrize("content", [b"<html>", DEEP, b"[]", b"{}", b'{"router": 1, "workers": [1]}'])
async def test_another_program_at_the_port_is_no_router(content: bytes) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=content))
    async with httpx.AsyncClient(transport=transport) as client:
        assert await view_router(client, "http://127.0.0.1:1") is None
