"""The pool that is registered with a transport, and the units in which pools are read.

Ranks of groups of different sizes hold different shares of a model's blocks. Blocks are made of equal parts, each one
contiguous region. So the greatest common divisor of the two block sizes is a whole number of parts, and a rank reads
whole units of the other's block. If both block sizes are equal, a unit is a block.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baton.kvtransfer.base import PoolDescription, PoolIdentity
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


@dataclass(frozen=True, slots=True)
class Run:
    """Units that are contiguous on both sides and copied at once."""

    remote: int  # first unit
    local: int  # first unit
    num_units: int


@dataclass(frozen=True, slots=True)
class LocalPool:
    """A registered pool. Holds the tensor, so that its memory outlives every copy into it."""

    tensor: Tensor
    identity: PoolIdentity
    num_blocks: int
    block_bytes: int

    @classmethod
    def of(cls, tensor: Tensor, identity: PoolIdentity) -> "LocalPool":
        """Wrap a pool, [num_blocks, ...].

        Raises ValueError for a tensor that is empty, not contiguous, without a block dimension, or neither in host
        memory nor on a CUDA GPU.
        """
        if tensor.device.type not in ("cpu", "cuda"):
            raise _wrong_device(tensor)
        if tensor.dim() < 2 or tensor.numel() == 0:
            raise ValueError(f"a pool must have blocks along dim 0, this one has shape {tuple(tensor.shape)}")
        if not tensor.is_contiguous():
            raise ValueError(f"a pool must be contiguous, this one has strides {tensor.stride()}")
        num_blocks = tensor.shape[0]
        return cls(tensor, identity, num_blocks, tensor.numel() * tensor.element_size() // num_blocks)

    def require_host_memory(self) -> None:
        """Raise ValueError for a pool that is not in host memory."""
        if self.tensor.device.type != "cpu":
            raise _wrong_device(self.tensor)

    @property
    def address(self) -> int:
        """Address of block 0 in this process."""
        return self.tensor.data_ptr()

    @property
    def num_bytes(self) -> int:
        """Size of all blocks."""
        return self.num_blocks * self.block_bytes

    def as_bytes(self) -> NDArray[np.uint8]:
        """Return a view as [num_blocks, block_bytes]; host memory only."""
        return block_bytes_of(self.tensor)

    def in_units(self, unit_bytes: int) -> NDArray[np.uint8]:
        """Return a view as [num_units, unit_bytes]; host memory only."""
        return self.as_bytes().reshape(-1, unit_bytes)

    def rows(self, unit_bytes: int) -> Tensor:
        """Return a view as [num_units, unit_bytes] on the pool's device."""
        return self.tensor.detach().reshape(-1).view(torch.uint8).view(-1, unit_bytes)

    def memory(self) -> memoryview:
        """Return a flat view of the bytes; host memory only."""
        return self.as_bytes().reshape(-1).data

    def describe(self, endpoints: Mapping[str, bytes]) -> PoolDescription:
        """Return the description of this pool that is sent to peers; endpoints: by transport."""
        return PoolDescription(
            self.identity.incarnation,
            self.identity.fingerprint,
            self.num_blocks,
            self.block_bytes,
            endpoints,
            "xxh3" if self.tensor.device.type == "cpu" else "words",
        )

    def units(self, peer: PoolDescription) -> Units:
        """Return the units in which the peer is read. Raises PeerRefused if fingerprint or block size do not match."""
        if peer.fingerprint != self.identity.fingerprint:
            raise PeerRefused(
                f"the fingerprint of peer {peer.incarnation} is {peer.fingerprint!r}, ours is "
                f"{self.identity.fingerprint!r}"
            )
        return Units.of(self.num_blocks, self.block_bytes, peer)


def _wrong_device(tensor: Tensor) -> ValueError:
    others = "nixl, nccl, staged and auto serve one on a GPU"
    return ValueError(f"a pool must be on the CPU for this transport, this one is on {tensor.device}; {others}")


def block_bytes_of(pool: Tensor) -> NDArray[np.uint8]:
    """Return a view of a contiguous host pool as [num_blocks, block_bytes]."""
    flat: NDArray[np.uint8] = pool.detach().reshape(-1).view(torch.uint8).numpy()
    return flat.reshape(pool.shape[0], -1)


def runs(remote: Sequence[int], local: Sequence[int], max_units: int) -> Iterator[Run]:
    """Split pairs of units into runs that are contiguous on both sides, of at most `max_units` units each."""
    start = 0
    for end in range(1, len(remote) + 1):
        if (
            end == len(remote)
            or end - start == max_units
            or remote[end] != remote[end - 1] + 1
            or local[end] != local[end - 1] + 1
        ):
            yield Run(remote[start], local[start], end - start)
            start = end
