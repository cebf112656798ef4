"""The interface of a backend, which holds what one kind of transport does differently from the others."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from baton.kvtransfer.base import PeerId, PoolDescription, TransportChoice
from baton.kvtransfer.local_pool import LocalPool, Units
from baton.kvtransfer.transfers import Transfer

MAX_READS = 1024  # at once from one peer, unless a backend has a lower limit


class Connection(Protocol):
    """An open connection to one peer. It calls `Lose` when it notices the peer's end."""

    @property
    def choice(self) -> TransportChoice:
        """The transport in use, and why."""
        ...

    @property
    def max_reads(self) -> int:
        """Reads at once; further ones wait."""
        ...

    def is_open(self) -> bool:
        """Whether the peer is still connected."""
        ...

    def start(self, transfer: Transfer) -> "asyncio.Future[None]":
        """Start to copy the transfer's units; the future ends when no write can land any more.

        It is done at once only after a success. Failures that show the peer's end are PeerLost, after which the
        connection is closed.
        """
        ...

    def close(self) -> None:
        """Close the connection; its reads are aborted, but may still run."""
        ...


Lose = Callable[[PeerId, Connection], None]


class Backend(Protocol):
    """One kind of transport: serves the pool to peers, and opens connections to theirs.

    All methods run on the event loop. See KVTransport for the errors.
    """

    name: str
    connect_deadline_s: float
    costs: str  # set for a last resort: what it costs, for the warning when it is chosen

    def register_pool(self, pool: LocalPool) -> bytes:
        """Serve the pool, and return the endpoint that peers need."""
        ...

    async def open(self, peer: PoolDescription, units: Units, lose: Lose) -> Connection:
        """Open a connection over which `units` of the peer are read. Cancelled at the deadline."""
        ...

    async def stop(self) -> None:
        """Stop serving, and end the reads that an abort does not end; all connections are closed."""
        ...

    async def close(self) -> None:
        """Release everything; all reads have ended."""
        ...


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A backend that does not work on this host, and why."""

    name: str
    reason: str
