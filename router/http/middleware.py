"""Middleware of the FastAPI application: request ids, API keys, CORS headers."""

from collections.abc import Callable, Mapping, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.process.request_scope import enter_request
from baton.router.auth.client import Gate
from baton.router.http.headers import new_id, read_headers
from baton.router.openai.errors import error_response
from baton.rpc.status import Unauthenticated

ErrorResponse = Callable[[Exception], Response]


class CrossOrigin(CORSMiddleware):
    """Starlette's CORS middleware, and its headers for responses that bypass it.

    All response headers are exposed: browsers hide others from the page. Cookies are not allowed, as API keys are sent
    in a header.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        methods = ("GET", "HEAD", "POST", "DELETE")
        super().__init__(app, allow_origins=origins, allow_methods=methods, allow_headers=("*",), expose_headers=("*",))

    def response_headers(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        """Return the headers that the middleware adds to the response for a request from this origin."""
        headers = MutableHeaders(self.simple_headers if origin is not None else None)
        if origin is not None and not self.allow_all_origins and self.is_allowed_origin(origin):
            self.allow_explicit_origin(headers, origin)
        else:
            headers["vary"] = "Origin"
        return headers.raw


class RequestIdMiddleware:
    """Adds `x-request-id` to each response: the client's id if it sent one, otherwise a random one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_id(Headers(scope=scope).get("x-request-id", ""))
        enter_request(request_id)  # the task may be a copy of that of the connection's previous request

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class GateMiddleware:
    """Rejects requests without a required API key."""

    def __init__(self, app: ASGIApp, gate: Gate, shapes: Mapping[str, ErrorResponse]) -> None:
        """`shapes`: responses for errors by the first part of the path; OpenAI's for all other paths."""
        self._app = app
        self._gate = gate
        self._shapes = shapes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and not self._gate.is_open(scope["path"]):
            try:
                self._gate.client(read_headers(scope["headers"]))
            except Unauthenticated as error:
                respond = self._shapes.get("/" + scope["path"].split("/")[1], error_response)
                await respond(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)
