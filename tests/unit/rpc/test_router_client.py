"""Responses of servers that are not routers, or broken ones."""

import httpx
import pytest

from baton.rpc.router_client import ServerError, check, json_body

DEEP = b"[" * 100_000


@pytest.mark.parametrize("content", [b"", b"<html>", b"{", DEEP, b"\xff"])
def test_a_response_without_json_is_an_error(content: bytes) -> None:
    with pytest.raises(ServerError, match="the response is not JSON") as caught:
        json_body(httpx.Response(200, content=content))
    assert len(str(caught.value)) < 1000


def test_json_is_returned() -> None:
    assert json_body(httpx.Response(200, content=b'{"a": [1]}')) == {"a": [1]}


def test_an_error_response_of_any_content_is_reported_by_its_text() -> None:
    with pytest.raises(ServerError, match=r"^502: \[\[\[\["):
        check(httpx.Response(502, content=DEEP))
    with pytest.raises(ServerError, match=r"^404: gone$"):
        check(httpx.Response(404, content=b'{"error": {"message": "gone"}}'))
