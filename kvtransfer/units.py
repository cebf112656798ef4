"""The units in which a pool is read into one with another block size.

Ranks of groups of different sizes hold different shares of a model's blocks. Blocks are made of equal parts, each one
contiguous region. So the greatest common divisor of the two block sizes is a whole number of parts, and a rank reads
whole units of the other's block. If both block sizes are equal, a unit is a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from baton.kvtransfer.base import PoolDescription
from baton.kvtransfer.errors import PeerRefused, truncated_repr

MAX_BLOCK_UNITS = 256  # more than any model's blocks have parts; more units mean blocks of different models
MAX_PEER_UNITS = 1 << 26  # 128 TiB in units of 2 MiB; bounds what a transport stores per unit


def unit_bytes_of(block_bytes: int, peer_block_bytes: int) -> int:
    """Return the size of a unit in bytes. Raises ValueError for block sizes that ranks of one model cannot have."""
    unit_bytes = gcd(block_bytes, peer_block_bytes)
    if peer_block_bytes <= 0 or max(block_bytes, peer_block_bytes) > MAX_BLOCK_UNITS * unit_bytes:
        raise ValueError(
            f"blocks of {truncated_repr(peer_block_bytes)} bytes and of {block_bytes} are not made of the same parts, "
            f"at most {MAX_BLOCK_UNITS} a block"
        )
    return unit_bytes


@dataclass(frozen=True, slots=True)
class Units:
    """The units of our pool and of a peer's, numbered on each side block after block."""

    unit_bytes: int
    local_per_block: int
    remote_per_block: int
    num_local: int
    num_remote: int

    @classmethod
    def of(cls, num_blocks: int, block_bytes: int, peer: PoolDescription) -> "Units":
        """Compute the units between our pool and a peer's.

        Raises PeerRefused if the block sizes cannot belong to one model, or the peer claims more than 2^26 units.
        """
        try:
            unit_bytes = unit_bytes_of(block_bytes, peer.block_bytes)
        except ValueError as error:
            raise PeerRefused(f"the block size of peer {peer.incarnation} does not fit ours: {error}") from error
        local, remote = block_bytes // unit_bytes, peer.block_bytes // unit_bytes
        if not 0 < peer.num_blocks * remote <= MAX_PEER_UNITS:
            raise PeerRefused(f"peer {peer.incarnation} claims to have {peer.num_blocks} blocks")
        return cls(unit_bytes, local, remote, num_blocks * local, peer.num_blocks * remote)

    def check(self, peer: str, remote: Sequence[int], local: Sequence[int]) -> None:
        """Raise ValueError for wrong local units or lengths, PeerRefused for units that `peer` does not have."""
        if len(remote) != len(local):
            raise ValueError(f"{len(remote)} remote units cannot be read into {len(local)} local ones")
        if len(set(local)) != len(local):
            raise ValueError("a local unit occurs twice")
        if not local:
            return
        for unit in (min(local), max(local)):
            if not 0 <= unit < self.num_local:
                raise ValueError(
                    f"local block {unit // self.local_per_block} is not one of the pool's "
                    f"{self.num_local // self.local_per_block}"
                )
        for unit in (min(remote), max(remote)):
            if not 0 <= unit < self.num_remote:
                raise PeerRefused(
                    f"block {unit // self.remote_per_block} is not one of the "
                    f"{self.num_remote // self.remote_per_block} of peer {peer}"
                )

    def local_blocks(self, local: Sequence[int]) -> Sequence[int]:
        """Return our blocks that contain the given units, without duplicates."""
        if self.local_per_block == 1:
            return local
        return list(dict.fromkeys(unit // self.local_per_block for unit in local))
