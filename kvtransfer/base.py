"""The interface of a transport, which reads a peer's blocks into the local pool."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from torch import Tensor

from baton.kvtransfer.quarantine import Quarantine

PeerId = NewType("PeerId", str)  # the peer's incarnation
Landed = Callable[[int], None]  # called with the number of further units of a read that have arrived


def ignore_landed(_num_units: int) -> None:
    """Ignore the progress of a read."""


@dataclass(frozen=True, slots=True)
class PoolIdentity:
    """The owner of a pool and the contents of its blocks."""

    incarnation: str  # unique to one run of the owner's process
    fingerprint: str  # of the model and the block layout; must be equal for a read


@dataclass(frozen=True, slots=True)
class PoolDescription:
    """How to read a pool; sent to peers. `endpoints` maps a transport's name to the address that it defined."""

    incarnation: str
    fingerprint: str
    num_blocks: int
    block_bytes: int
    endpoints: Mapping[str, bytes]
    checksum: str = "xxh3"  # the kind that the owner computes; see `checksum/block_checksum.py`


@dataclass(frozen=True, slots=True)
class TransportChoice:
    """The transport in use for a peer, and why it was chosen."""

    transport: str
    reason: str


class KVTransport(Protocol):
    """A pull of blocks, or parts of them. Dim 0 of a pool is the block; each block is one contiguous region.

    Pools with equal block sizes are read in blocks. If the sizes differ, as between ranks that hold different shares of
    a model's blocks, pools are read in units whose size is the greatest common divisor of the two block sizes. Units
    are numbered through the pool: a block of `n` units is units `n * block` to `n * block + n - 1`. See `local_pool`.

    All coroutines run on one event loop. `quarantine` names the local blocks into which a write may still land.
    """

    @property
    def quarantine(self) -> Quarantine:
        """Local blocks into which a transfer may still write."""
        ...

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """The transport in use for each connected peer."""
        ...

    def register_pool(self, pool: Tensor) -> PoolDescription:
        """Make the pool readable by peers and the destination of reads; called once, on the event loop.

        Raises ValueError for a pool that is empty, not contiguous, or in memory that this transport cannot read.
        """
        ...

    async def connect(self, peer: PoolDescription) -> PeerId:
        """Connect to a peer and return its id; idempotent.

        Raises PeerRefused if the peer is not the one that `peer` describes, or its fingerprint or block size does not
        match ours; PeerLost if it has ended; TransferDeadline if it does not respond; TransportUnavailable if this
        transport cannot reach it.
        """
        ...

    async def read(
        self,
        peer: PeerId,
        remote: Sequence[int],
        local: Sequence[int],
        deadline_s: float,
        landed: Landed = ignore_landed,
    ) -> None:
        """Copy the peer's units `remote` into our units `local`, pairwise, within `deadline_s` seconds from now.

        `landed` is called with the number of further units of `local` that have arrived, in order, while they are still
        in the CPU's cache. It runs on the thread that copies, so it must neither wait nor raise.

        Raises PeerLost, TransferDeadline, PeerRefused for a unit that the peer does not have, TransferFailed for a
        failure on our side, ValueError for wrong local units. After an error or a cancellation the contents of the
        local units are undefined, and their blocks stay in `quarantine` as long as a write may still land.
        """
        ...

    def forget(self, peer: PeerId) -> None:
        """Drop the connection to a peer; its reads in flight fail with PeerLost."""
        ...

    async def close(self) -> None:
        """Close every connection, including those over which peers read this pool; valid without a registered pool."""
        ...
