"""A peer that NIXL reads, and the plain connection beside NIXL."""

import socket
from contextlib import suppress

from baton.kvtransfer.base import PeerId, PoolDescription
from baton.kvtransfer.errors import PeerLost
from baton.kvtransfer.staged.control import receive_bytes
from baton.kvtransfer.units import Units

POLL = b"+"  # a reader's words to the other side: poll from now on
REST = b"-"  # that will do
COUNT = b"?"  # once you do not poll, for whomever: say how often you have
COUNT_BYTES = 8


class NixlPeer:
    """Owns the connection that tells of the peer's end, and over which we ask it to poll."""

    def __init__(self, description: PoolDescription, units: Units, sock: socket.socket) -> None:
        self.description = description
        self.units = units
        self.sock = sock
        self.region = -1  # our pool in these units, as the agent numbers it, once that is prepared
        self.reason = ""  # for the choice of NIXL, once it is known
        self._num_reads_in_need = 0

    @property
    def peer_id(self) -> PeerId:
        """The peer's incarnation."""
        return PeerId(self.description.incarnation)

    def ask(self) -> None:
        """A read needs the peer to poll."""
        self._num_reads_in_need += 1
        if self._num_reads_in_need == 1:
            self._say(POLL)

    def stop_polling(self) -> None:
        """A read that needed it has ended."""
        self._num_reads_in_need -= 1
        if self._num_reads_in_need == 0:
            self._say(REST)

    async def polls_at_rest(self) -> int:
        """How often the peer has polled, as it says once it rests: all that was said before has been heard by then.

        Only while nobody watches the connection. Raises PeerLost.
        """
        self._say(COUNT)
        try:
            return int.from_bytes(await receive_bytes(self.sock, COUNT_BYTES), "little")
        except OSError as error:
            raise PeerLost(f"peer {self.peer_id} broke the connection: {error}") from error

    def _say(self, word: bytes) -> None:
        # A peer that is gone or does not listen is noticed elsewhere: by its connection's end or the read's deadline.
        with suppress(OSError):
            self.sock.send(word)
