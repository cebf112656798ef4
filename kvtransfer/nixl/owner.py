"""The owner's half of reads over NIXL: polls while readers request it, and reports its number of polls."""

import asyncio
import socket
from contextlib import suppress

from baton.kvtransfer.handshake import Caller
from baton.kvtransfer.nixl.agent import NixlAgent
from baton.kvtransfer.tcp.connection import keep_alive

# Commands of a reader to the owner.
POLL = b"+"  # poll from now on
REST = b"-"  # stop polling
COUNT = b"?"  # once idle, that is, polling for no peer, report the number of polls so far
COUNT_BYTES = 8


class NixlOwner:
    """Serves readers' control connections; NIXL or a device transfers the blocks."""

    def __init__(self, agent: NixlAgent) -> None:
        self._agent = agent

    async def serve(self, sock: socket.socket, _caller: Caller) -> None:
        """Poll while an admitted caller requests it, until the caller disconnects."""
        keep_alive(sock)
        await _Reader(self._agent, sock).serve()


class _Reader:
    """The connection to one reader."""

    def __init__(self, agent: NixlAgent, sock: socket.socket) -> None:
        self._agent = agent
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._wants_polls = False
        self._wants_count = False

    async def serve(self) -> None:
        try:
            while received := await self._loop.sock_recv(self._sock, 64):
                for at in range(len(received)):
                    self._handle(received[at : at + 1])
        finally:
            if self._wants_polls:
                self._agent.poll_for_peer(-1)

    def _handle(self, command: bytes) -> None:
        if command == COUNT:
            if not self._wants_count:  # one pending count per reader bounds the memory that it can use
                self._wants_count = True
                self._agent.report_polls_when_idle(self._report_polls)
        elif (command == POLL) != self._wants_polls:
            self._wants_polls = not self._wants_polls
            self._agent.poll_for_peer(1 if self._wants_polls else -1)

    def _report_polls(self, num_polls: int) -> None:
        """Send the count from the event loop; called in the agent's thread."""
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._send_count, num_polls)

    def _send_count(self, num_polls: int) -> None:
        self._wants_count = False
        with suppress(OSError):  # the reader has disconnected or does not read
            self._sock.send(num_polls.to_bytes(COUNT_BYTES, "little"))
