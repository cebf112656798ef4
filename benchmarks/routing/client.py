"""Client of local routers that times the first text and the end of responses."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from baton.loadtool.client import HttpClient

REQUEST_TIMEOUT_S = 120.0
TEXT = re.compile(rb'"(?:text|content)":"[^"]')  # skips the empty events that some routers send first
TAIL_BYTES = 32  # longer than the searched texts, which may arrive in parts


class Refused(Exception):
    """Unexpected response of the router, whose status and body are in the text."""


@dataclass(slots=True)
class Answer:
    """Times of a response, in seconds of one clock."""

    sent_s: float = 0.0
    first_s: float = 0.0  # the first text of a stream
    last_s: float = 0.0
    status: int = 0
    kept: bytes = b""  # the body's last bytes until the first text; all of an error

    @property
    def ttft_s(self) -> float:
        """Seconds from the request to the first token."""
        return self.first_s - self.sent_s

    @property
    def total_s(self) -> float:
        """Seconds from the request to the end of the response."""
        return self.last_s - self.sent_s

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Handle the status."""
        self.status = status

    def body(self, piece: bytes, now_s: float) -> None:
        """Handle a piece of the body."""
        self.last_s = now_s
        if self.status != 200:
            self.kept += piece
        elif not self.first_s:
            self.kept += piece
            if TEXT.search(self.kept):
                self.first_s = now_s
            self.kept = self.kept[-TAIL_BYTES:]


class Client:
    """Connections to each port, as many as were ever needed concurrently."""

    def __init__(self) -> None:
        self._clients: dict[int, HttpClient] = {}

    async def ask(self, port: int, payload: bytes) -> Answer:
        """Send a prepared request. Raises OSError, Refused or TimeoutError if there is no complete response of 200."""
        if port not in self._clients:
            self._clients[port] = HttpClient("127.0.0.1", port, None, REQUEST_TIMEOUT_S)
        answer = Answer()
        answer.sent_s = await self._clients[port].ask(payload, answer)
        if answer.status != 200:
            raise Refused(f"{answer.status}: {answer.kept.decode(errors='replace')}")
        return answer

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
