"""The owner's half of reads over NIXL: polls while readers want it, and says how often it has."""

import asyncio
import socket
from contextlib import suppress

from baton.kvtransfer.handshake import Caller
from baton.kvtransfer.nixl.agent import NixlAgent
from baton.kvtransfer.nixl.peer import COUNT, COUNT_BYTES, POLL
from baton.kvtransfer.tcp.connection import keep_alive


class NixlOwner:
    """Serves readers; what moves their blocks is NIXL, or a device."""

    def __init__(self, agent: NixlAgent) -> None:
        self._agent = agent

    async def serve(self, sock: socket.socket, _caller: Caller) -> None:
        """Polls while an admitted caller wants it, and learns of the caller's end."""
        keep_alive(sock)
        await _Reader(self._agent, sock).serve()


class _Reader:
    """One connection."""

    def __init__(self, agent: NixlAgent, sock: socket.socket) -> None:
        self._agent = agent
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._wants_polls = False
        self._wants_count = False

    async def serve(self) -> None:
        try:
            while words := await self._loop.sock_recv(self._sock, 64):
                for at in range(len(words)):
                    self._hear(words[at : at + 1])
        finally:
            if self._wants_polls:
                self._agent.poll_for_peer(-1)

    def _hear(self, word: bytes) -> None:
        if word == COUNT:
            if not self._wants_count:  # or who asks without end would have us remember it
                self._wants_count = True
                self._agent.count_at_rest(self._count)
        elif (word == POLL) != self._wants_polls:
            self._wants_polls = not self._wants_polls
            self._agent.poll_for_peer(1 if self._wants_polls else -1)

    def _count(self, num_polls: int) -> None:
        """Called in the agent's thread."""
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._answer, num_polls)

    def _answer(self, num_polls: int) -> None:
        self._wants_count = False
        with suppress(OSError):  # the reader is gone, or does not listen
            self._sock.send(num_polls.to_bytes(COUNT_BYTES, "little"))
