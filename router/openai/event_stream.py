"""Server-sent events that end with their client."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.openai.disconnect import ClientGone, until_disconnect


class EventStream(Response):
    """Sends what a generator yields; closes it, and what it needs (`held`), at its end or once the client is gone."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str], held: AsyncExitStack) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._events = events
        self._held = held
        self.init_headers({**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the whole stream."""
        async with self._held, aclosing(self._events):
            try:
                await until_disconnect(receive, self._send(send))
            except (ClientGone, OSError):
                return  # nobody is left to tell; closing the generator cancels the work

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
