"""What every transport is: a way to read a peer's blocks into one's own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from torch import Tensor

from baton.kvtransfer.quarantine import Quarantine

PeerId = NewType("PeerId", str)  # the peer's incarnation
Landed = Callable[[int], None]  # takes how many more of a read's units have come


def nobody(_num_units: int) -> None:
    """Does not want to know what has landed."""


@dataclass(frozen=True, slots=True)
class PoolIdentity:
    """Who owns a pool, in which life, and what its blocks mean."""

    incarnation: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class PoolDescription:
    """How to read a pool; travels to peers. `endpoints` maps a transport's name to that transport's own address."""

    incarnation: str
    fingerprint: str
    num_blocks: int
    block_bytes: int
    endpoints: Mapping[str, bytes]
    checksum: str = "xxh3"  # the kind that the owner makes of its blocks; see `checksum`


@dataclass(frozen=True, slots=True)
class TransportChoice:
    """The transport in use for a peer, and why that one."""

    transport: str
    reason: str


class KVTransport(Protocol):
    """Pulls blocks, or parts of them; dim 0 of a pool is the block, and each block is one contiguous region.

    Between pools whose blocks have one size, what is read are blocks. Where the sizes differ, as between ranks that
    hold other shares of a model's blocks, it is units of as many bytes as the two sizes' greatest common divisor,
    numbered through: a block of `n` units is units `n * block` to `n * block + n - 1`. See `units`.

    All coroutines run on one event loop. `quarantine` names the local blocks into which a write may still land.
    """

    @property
    def quarantine(self) -> Quarantine:
        """Local blocks with a transfer that has not ended."""
        ...

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """The transport in use for each connected peer."""
        ...

    def register_pool(self, pool: Tensor) -> PoolDescription:
        """Makes the pool readable for peers and the destination of reads; called once, on the event loop.

        Raises ValueError for a pool that is not contiguous, empty or in memory that this transport does not read.
        """
        ...

    async def connect(self, peer: PoolDescription) -> PeerId:
        """Gets ready to read from a peer; idempotent.

        Raises PeerRefused if the peer is not whom `peer` describes, its fingerprint differs from ours or its blocks are
        not made of parts of ours, PeerLost if it is gone, TransferDeadline if it does not answer, TransportUnavailable
        if this transport cannot reach it.
        """
        ...

    async def read(
        self,
        peer: PeerId,
        remote: Sequence[int],
        local: Sequence[int],
        deadline_s: float,
        landed: Landed = nobody,
    ) -> None:
        """Copies the peer's units `remote` into our units `local`, pairwise, within `deadline_s` seconds from now.

        `landed` hears how many more units of `local` have come, in their order, while they are in the processor's
        cache. It is called on the thread that copies, so it must neither wait nor raise.

        Raises PeerLost, TransferDeadline, PeerRefused for a unit that the peer does not have, TransferFailed for what
        failed on our side, ValueError for wrong local units. After an error or a cancellation the local units' contents
        are undefined, and their blocks stay in `quarantine` for as long as a write may still land.
        """
        ...

    def forget(self, peer: PeerId) -> None:
        """Drops the connection to a peer; reads from it in flight fail."""
        ...

    async def close(self) -> None:
        """Ends every connection, the peers' reads from this pool included; whether or not a pool was registered."""
        ...
