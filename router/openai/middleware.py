"""What every HTTP request passes: a bound on its body, and an id."""

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIdMiddleware:
    """Gives each request an id, the client's own if it has one, and returns it with the response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class BodyLimitMiddleware:
    """Refuses bodies that are too large, before they are held in memory."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        num_bytes = 0

        async def receive_bounded() -> Message:
            nonlocal num_bytes
            self._check(int(announced) if announced.isdigit() else 0)
            message = await receive()
            num_bytes += len(message.get("body", b""))
            self._check(num_bytes)
            return message

        await self._app(scope, receive_bounded, send)

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise HTTPException(413, f"the body is over the limit of {self._max_bytes} bytes")
