"""Responses over ASGI that may be large: sent in slices, and counted as unread output until then."""

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from baton.router.admission.unread_output import UnreadOutput

SLICE_BYTES = 1 << 16


class PacedResponse(Response):
    """Response whose body goes to the transport only as fast as the client reads.

    A single write of the whole body would be buffered by the transport, uncounted, for as long as the client takes.
    """

    def __init__(self, body: bytes, media_type: str, unread: UnreadOutput, key: str | None) -> None:
        """`key`: of the client, whose bound on unread output applies; None without one."""
        super().__init__(body, media_type=media_type)
        self._unread = unread
        self._key = key
        self._task: asyncio.Task[object] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. The task is cancelled if too much output is unread."""
        self._task = asyncio.current_task()
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        share = self._unread.begin("a response", self._key, self._give_up)
        try:
            for place in range(0, len(body), SLICE_BYTES):
                share.update(len(body) - place, 0)
                part = bytes(body[place : place + SLICE_BYTES])
                await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            share.close()
        await send({"type": "http.response.body", "body": b""})

    def _give_up(self) -> None:
        """End the task that sends the response, which closes the connection."""
        assert self._task is not None
        self._task.cancel()
