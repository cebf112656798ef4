"""A peer that NIXL reads, and the control connection to it."""

import socket
from contextlib import suppress

from baton.kvtransfer.base import PeerId, PoolDescription
from baton.kvtransfer.errors import PeerLost
from baton.kvtransfer.staged.control import receive_bytes
from baton.kvtransfer.units import Units

# Commands of a reader to the owner.
POLL = b"+"  # poll from now on
REST = b"-"  # stop polling
COUNT = b"?"  # once idle, that is, polling for no peer, report the number of polls so far
COUNT_BYTES = 8


class NixlPeer:
    """A peer with its control connection, whose end signals the peer's end and over which polling is requested."""

    def __init__(self, description: PoolDescription, units: Units, sock: socket.socket) -> None:
        self.description = description
        self.units = units
        self.sock = sock
        self.region = -1  # the agent's index of our pool in these units; -1: not prepared yet
        self.reason = ""  # why NIXL was chosen; empty until the probe has ended
        self._num_polled_reads = 0

    @property
    def peer_id(self) -> PeerId:
        """The peer's incarnation."""
        return PeerId(self.description.incarnation)

    def start_polling(self) -> None:
        """Count a read that needs the peer to poll; the first makes the peer poll."""
        self._num_polled_reads += 1
        if self._num_polled_reads == 1:
            self._send(POLL)

    def stop_polling(self) -> None:
        """Uncount a read that needed the peer to poll; the last makes the peer stop."""
        self._num_polled_reads -= 1
        if self._num_polled_reads == 0:
            self._send(REST)

    async def num_polls_when_idle(self) -> int:
        """Return the peer's number of polls, which it reports once idle and after it has handled earlier commands.

        Must not be called while the event loop watches the connection. Raises PeerLost.
        """
        self._send(COUNT)
        try:
            return int.from_bytes(await receive_bytes(self.sock, COUNT_BYTES), "little")
        except OSError as error:
            raise PeerLost(f"peer {self.peer_id} broke the connection: {error}") from error

    def _send(self, command: bytes) -> None:
        # A lost or stopped peer is detected elsewhere: by the end of its connection or the read's deadline.
        with suppress(OSError):
            self.sock.send(command)
