"""Reverse proxy from a Serve replica to the router process on the same node."""

from collections.abc import AsyncIterator
from urllib.parse import quote

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

CONNECT_TIMEOUT_S = 5.0
KEEP_ALIVE_S = 5.0  # of an idle connection; shorter than the server's, which must not close a connection in use
QUERY_CHARS = "".join(map(chr, range(0x21, 0x7F)))  # not quoted again, including the % of quoted characters
# Hop-by-hop headers (RFC 9110, section 7.6.1), and the host, which is the server's own.
HOP_HEADERS = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade", b"host"),
    }
)

SERVE_HEADERS = frozenset({b"date", b"server", b"x-request-id"})  # of responses: Serve's server adds them itself

Headers = list[tuple[bytes, bytes]]


class Forward:
    """Proxy for any method and path to one server. Bodies are streamed unbuffered in both directions."""

    def __init__(self, url: str) -> None:
        """Open no connection yet. The certificate of an https:// server is not checked: it has the public name."""
        self._url = httpx.URL(url)
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(keepalive_expiry=KEEP_ALIVE_S),
            trust_env=False,
            verify=False,
        )

    async def __call__(self, request: Request) -> Response:
        """Forward the request and return the server's response, or 503 if the server cannot be reached.

        Serve cancels this call when the client disconnects, which closes the connection and aborts the request.
        """
        has_body = any(name in request.headers for name in ("content-length", "transfer-encoding"))
        forwarded = self._client.build_request(
            request.method,
            self._url.copy_with(raw_path=_target(request)),
            headers=_without_hop_headers(request.headers.raw),
            content=request.stream() if has_body else None,
        )
        try:
            upstream = await self._client.send(forwarded, stream=True)
        except httpx.TransportError as error:
            message = f"the router cannot be reached: {type(error).__name__} {error}".strip()
            return JSONResponse({"error": {"message": message, "type": "server_error", "code": 503}}, 503)
        response = StreamingResponse(_body(upstream), upstream.status_code)
        headers = _without_hop_headers(upstream.headers.raw)
        response.raw_headers = [(name, value) for name, value in headers if name.lower() not in SERVE_HEADERS]
        return response

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _target(request: Request) -> bytes:
    """Return the path and query, without the application's route prefix."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", "")) or "/"
    query = quote(request.scope.get("query_string", b""), safe=QUERY_CHARS)  # clients may send it as raw bytes
    return (quote(path, safe="/:@!$&'()*+,;=~") + ("?" + query if query else "")).encode()


def _without_hop_headers(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in HOP_HEADERS]


async def _body(upstream: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the raw body, without decompressing it."""
    try:
        async for chunk in upstream.aiter_raw():
            yield chunk
    finally:
        await upstream.aclose()
