"""The pool that a transport was given, and the block lists that may be copied into it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvtransfer.base import PoolDescription, PoolIdentity
from kvtransfer.errors import PeerRefused

MAX_PEER_BLOCKS = 1 << 26  # 128 TiB of blocks of 2 MiB; a transport may keep some bytes for each


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring blocks that are copied in one go."""

    remote: int  # first block
    local: int  # first block
    num_blocks: int


@dataclass(frozen=True, slots=True)
class LocalPool:
    """A registered pool; holds the tensor, so that its memory lives as long as anything may be copied into it."""

    tensor: Tensor
    identity: PoolIdentity
    num_blocks: int
    block_bytes: int

    @classmethod
    def of(cls, tensor: Tensor, identity: PoolIdentity) -> "LocalPool":
        """Raises ValueError for a tensor whose blocks are not one contiguous region of host memory each."""
        if tensor.device.type != "cpu":
            raise ValueError(f"a pool must be on the CPU, this one is on {tensor.device}")
        if tensor.dim() < 2 or tensor.numel() == 0:
            raise ValueError(f"a pool must have blocks along dim 0, this one has shape {tuple(tensor.shape)}")
        if not tensor.is_contiguous():
            raise ValueError(f"a pool must be contiguous, this one has strides {tensor.stride()}")
        num_blocks = tensor.shape[0]
        return cls(tensor, identity, num_blocks, tensor.numel() * tensor.element_size() // num_blocks)

    @property
    def address(self) -> int:
        """Where block 0 starts in this process."""
        return self.tensor.data_ptr()

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.num_blocks * self.block_bytes

    def as_bytes(self) -> NDArray[np.uint8]:
        """The same memory as [num_blocks, block_bytes]."""
        return block_bytes_of(self.tensor)

    def memory(self) -> memoryview:
        """The same memory, flat."""
        return self.as_bytes().reshape(-1).data

    def describe(self, transport: str, endpoint: bytes) -> PoolDescription:
        """What peers are told about this pool."""
        return PoolDescription(
            self.identity.incarnation,
            self.identity.fingerprint,
            self.num_blocks,
            self.block_bytes,
            {transport: endpoint},
        )

    def check_peer(self, peer: PoolDescription) -> None:
        """Raises PeerRefused unless the peer's blocks mean the same as ours."""
        for what, theirs, ours in (
            ("fingerprint", peer.fingerprint, self.identity.fingerprint),
            ("block size in bytes", peer.block_bytes, self.block_bytes),
        ):
            if theirs != ours:
                raise PeerRefused(f"the {what} of peer {peer.incarnation} is {theirs!r}, ours is {ours!r}")
        if not 0 < peer.num_blocks <= MAX_PEER_BLOCKS:
            raise PeerRefused(f"peer {peer.incarnation} says that it has {peer.num_blocks} blocks")

    def check_blocks(self, peer: PoolDescription, remote: Sequence[int], local: Sequence[int]) -> None:
        """Raises ValueError for wrong local blocks or lengths, PeerRefused for blocks that the peer does not have."""
        if len(remote) != len(local):
            raise ValueError(f"{len(remote)} remote blocks cannot be read into {len(local)} local ones")
        if len(set(local)) != len(local):
            raise ValueError("a local block is named twice")
        for block in local:
            if not 0 <= block < self.num_blocks:
                raise ValueError(f"local block {block} is not one of the pool's {self.num_blocks}")
        for block in remote:
            if not 0 <= block < peer.num_blocks:
                raise PeerRefused(f"block {block} is not one of the {peer.num_blocks} of peer {peer.incarnation}")


def block_bytes_of(pool: Tensor) -> NDArray[np.uint8]:
    """A contiguous pool's memory as [num_blocks, block_bytes], no copy."""
    flat: NDArray[np.uint8] = pool.detach().reshape(-1).view(torch.uint8).numpy()
    return flat.reshape(pool.shape[0], -1)


def runs(remote: Sequence[int], local: Sequence[int], max_blocks: int) -> Iterator[Run]:
    """Splits pairs of blocks into runs that are neighbours on both sides, at most `max_blocks` long."""
    start = 0
    for end in range(1, len(remote) + 1):
        if (
            end == len(remote)
            or end - start == max_blocks
            or remote[end] != remote[end - 1] + 1
            or local[end] != local[end - 1] + 1
        ):
            yield Run(remote[start], local[start], end - start)
            start = end
