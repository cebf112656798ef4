"""HTTP requests that a replica was given by Serve, passed on to the server beside it."""

from collections.abc import AsyncIterator
from urllib.parse import quote

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

CONNECT_TIMEOUT_S = 5.0
KEEP_ALIVE_S = 5.0  # of an idle connection; the server's own is longer, so that it does not close one in use
QUERY_CHARS = "".join(map(chr, range(0x21, 0x7F)))  # that stay as they are, the % of what is quoted among them
# Of one connection, not of the message (RFC 9110, section 7.6.1); the host is the server's own.
PER_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade", b"host"),
    }
)

Headers = list[tuple[bytes, bytes]]


class Forward:
    """Passes requests of any method and path on to one server; bodies go through unbuffered in both directions."""

    def __init__(self, url: str) -> None:
        """An https:// server is taken without a look at its certificate, which is for the name that clients know."""
        self._url = httpx.URL(url)
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(keepalive_expiry=KEEP_ALIVE_S),
            trust_env=False,
            verify=False,
        )

    async def __call__(self, request: Request) -> Response:
        """The server's answer, 503 if it cannot be reached. A client that goes cancels the call, which ends the
        connection to the server, and with it the request."""
        has_body = any(name in request.headers for name in ("content-length", "transfer-encoding"))
        passed_on = self._client.build_request(
            request.method,
            self._url.copy_with(raw_path=_target(request)),
            headers=_end_to_end(request.headers.raw),
            content=request.stream() if has_body else None,
        )
        try:
            answer = await self._client.send(passed_on, stream=True)
        except httpx.TransportError as error:
            message = f"the router cannot be reached: {type(error).__name__} {error}".strip()
            return JSONResponse({"error": {"message": message, "type": "server_error", "code": 503}}, 503)
        response = StreamingResponse(_body(answer), answer.status_code)
        response.raw_headers = _end_to_end(answer.headers.raw)
        return response

    async def close(self) -> None:
        """Ends the connections."""
        await self._client.aclose()


def _target(request: Request) -> bytes:
    """Path and query, without the prefix under which Serve has the application."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", "")) or "/"
    query = quote(request.scope.get("query_string", b""), safe=QUERY_CHARS)  # clients may send it as raw bytes
    return (quote(path, safe="/:@!$&'()*+,;=~") + ("?" + query if query else "")).encode()


def _end_to_end(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in PER_HOP]


async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The body's bytes as they come, still compressed if they are."""
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    finally:
        await answer.aclose()
