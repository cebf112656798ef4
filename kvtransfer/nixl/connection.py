"""A connection to a peer that NIXL reads."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from baton.kvtransfer.backend import MAX_READS
from baton.kvtransfer.base import PeerId, PoolDescription, TransportChoice
from baton.kvtransfer.errors import PeerLost
from baton.kvtransfer.listener import is_open
from baton.kvtransfer.local_pool import Units
from baton.kvtransfer.nixl.agent import NixlAgent
from baton.kvtransfer.nixl.owner import COUNT, COUNT_BYTES, POLL, REST
from baton.kvtransfer.nixl.read import ASK_AFTER_S, Read
from baton.kvtransfer.staged.control import receive_bytes
from baton.kvtransfer.transfers import Transfer


class NixlConnection:
    """A peer with its control connection, whose end signals the peer's end and over which polling is requested."""

    max_reads = MAX_READS

    def __init__(
        self,
        description: PoolDescription,
        units: Units,
        sock: socket.socket,
        agent: NixlAgent,
        max_step_bytes: int,
        choice: TransportChoice,
        rest: Callable[["NixlConnection"], None],
        broken: Callable[["NixlConnection"], None],
    ) -> None:
        """`choice`: replaced after the probe; `rest` takes over the connection when it is closed.

        `broken` is called when a read has broken NIXL's connection for good.
        """
        self.description = description
        self.units = units
        self.sock = sock
        self.region = -1  # the agent's index of our pool in these units; -1: not prepared yet
        self.choice = choice
        self._agent = agent
        self._max_step_bytes = max_step_bytes
        self._rest = rest
        self._broken = broken
        self._num_polled_reads = 0

    @property
    def peer_id(self) -> PeerId:
        """The peer's incarnation."""
        return PeerId(self.description.incarnation)

    def is_open(self) -> bool:
        """Return whether the peer is still connected."""
        return is_open(self.sock)

    def start(self, transfer: Transfer) -> "asyncio.Future[None]":
        """Read in the agent's thread, in steps of 4 MiB, or 32 MiB between GPUs; see Connection."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._start(transfer, ended, self.region, self._max_step_bytes)
        return ended

    async def probe(self, region: int, deadline_s: float, ask_after_s: float) -> Read:
        """Read the peer's first unit into the first one of `region`; return the read once it has ended.

        Polling is requested after `ask_after_s` without progress. Raises PeerLost.
        """
        transfer = Transfer(self.peer_id, [0], [0], deadline_s)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        read = self._start(transfer, ended, region, self._max_step_bytes, ask_after_s)
        finishing = transfer.finish(ended, lambda: None)
        del ended  # its error will reference this frame; see `threads`
        await finishing
        return read

    def close(self) -> None:
        """Hand the connection over to `rest`."""
        self._rest(self)

    def _start(
        self,
        transfer: Transfer,
        ended: "asyncio.Future[None]",
        region: int,
        max_step_bytes: int,
        ask_after_s: float = ASK_AFTER_S,
    ) -> Read:
        """Start a read into a region; make the peer poll if the read makes no progress."""
        ask = partial(asyncio.get_running_loop().call_soon_threadsafe, self.start_polling)
        read = Read(transfer, region, self.units.unit_bytes, ended, ask, max_step_bytes, ask_after_s)

        def finish(_: bool) -> None:
            if read.has_requested_polling:
                self.stop_polling()
            if read.is_broken:
                self._broken(self)

        transfer.ended = finish
        self._agent.read(read)
        return read

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
