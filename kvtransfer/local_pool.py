"""The pool that is registered with a transport, and runs of units in it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from baton.kvtransfer.base import PoolDescription, PoolIdentity
from baton.kvtransfer.errors import PeerRefused
from baton.kvtransfer.units import Units


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
