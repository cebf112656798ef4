"""HTTP side of a pass-through process.

A request's body is an id of `ID_BYTES` and the worker's message; its path determines whether the response is streamed.
"""

import asyncio
import re
from collections.abc import Callable
from typing import cast

WHOLE, STREAMED = "/whole", "/streamed"
ID_BYTES = 16
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
NUM_ANSWER_BYTES = 400  # of a non-streamed response; about Baton's size
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
ANSWER = b'{"content":"' + b"w" * NUM_ANSWER_BYTES + b'"}'
WHOLE_ANSWER = HEAD + b"content-length: %d\r\n\r\n" % len(ANSWER) + ANSWER
EVENT = b'data: {"content":"word ","padding":"' + b"w" * 150 + b'"}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
STREAM_HEAD = HEAD + b"transfer-encoding: chunked\r\n\r\n"
STREAM_END = b"0\r\n\r\n"


class PassedRequest(asyncio.Protocol):
    """Connection for one request at a time."""

    def __init__(self, forward: Callable[[bytes, bytes, "PassedRequest"], None]) -> None:
        """`forward` gets a request's id, the worker's message, and this connection for the responses."""
        self._forward = forward
        self._received = bytearray()
        self._num_wanted = 0  # size of the current request; 0 until its headers are complete
        self._is_streamed = self._has_begun = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the start of the connection (asyncio)."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes (asyncio)."""
        self._received += data
        if not self._num_wanted:
            num_head_bytes = self._received.find(b"\r\n\r\n") + 4
            length = LENGTH.search(self._received)
            if num_head_bytes < 4 or length is None:
                return
            self._num_wanted = num_head_bytes + int(length[1])
        if len(self._received) == self._num_wanted:
            self._pass_on()

    def _pass_on(self) -> None:
        head, _, body = bytes(self._received).partition(b"\r\n\r\n")
        self._is_streamed, self._has_begun = head.startswith(b"POST " + STREAMED.encode()), False
        self._received.clear()
        self._num_wanted = 0
        self._forward(body[:ID_BYTES], body[ID_BYTES:], self)

    def on_output(self, is_last: bool) -> None:
        """Handle output of the worker."""
        assert self._transport is not None
        if self._is_streamed:
            head = b"" if self._has_begun else STREAM_HEAD
            self._has_begun = True
            self._transport.write(head + CHUNK + (STREAM_END if is_last else b""))
        elif is_last:
            self._transport.write(WHOLE_ANSWER)


async def serve_passing(port: int, forward: Callable[[bytes, bytes, PassedRequest], None]) -> None:
    """Serve until cancelled."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: PassedRequest(forward), "127.0.0.1", port)
    await server.serve_forever()
