"""The pool that a transport was given, and how lists of its units are copied."""

from collections.abc import Iterator, Sequence
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
    """Neighbouring units that are copied in one go."""

    remote: int  # first unit
    local: int  # first unit
    num_units: int


@dataclass(frozen=True, slots=True)
class LocalPool:
    """A registered pool; holds the tensor, so that its memory lives as long as anything may be copied into it."""

    tensor: Tensor
    identity: PoolIdentity
    num_blocks: int
    block_bytes: int

    @classmethod
    def of(cls, tensor: Tensor, identity: PoolIdentity, on_gpu: bool = False) -> "LocalPool":
        """Raises ValueError for a tensor whose blocks are not one contiguous region of memory each.

        That is the host's, for a transport that reads no other; with `on_gpu` it may be a GPU's.
        """
        if tensor.device.type not in (("cpu", "cuda") if on_gpu else ("cpu",)):
            others = "" if on_gpu else "; nixl, nccl, staged and auto serve one on a GPU"
            raise ValueError(f"a pool must be on the CPU for this transport, this one is on {tensor.device}{others}")
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

    def in_units(self, unit_bytes: int) -> NDArray[np.uint8]:
        """The same memory as [num_units, unit_bytes]."""
        return self.as_bytes().reshape(-1, unit_bytes)

    def rows(self, unit_bytes: int) -> Tensor:
        """The same memory as [num_units, unit_bytes], wherever it is."""
        return self.tensor.detach().reshape(-1).view(torch.uint8).view(-1, unit_bytes)

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
            "xxh3" if self.tensor.device.type == "cpu" else "words",
        )

    def units(self, peer: PoolDescription) -> Units:
        """In what units the peer is read. Raises PeerRefused unless its blocks are made of the same parts as ours."""
        if peer.fingerprint != self.identity.fingerprint:
            raise PeerRefused(
                f"the fingerprint of peer {peer.incarnation} is {peer.fingerprint!r}, ours is "
                f"{self.identity.fingerprint!r}"
            )
        return Units.of(self.num_blocks, self.block_bytes, peer)


def block_bytes_of(pool: Tensor) -> NDArray[np.uint8]:
    """A contiguous pool's memory as [num_blocks, block_bytes], no copy."""
    flat: NDArray[np.uint8] = pool.detach().reshape(-1).view(torch.uint8).numpy()
    return flat.reshape(pool.shape[0], -1)


def runs(remote: Sequence[int], local: Sequence[int], max_units: int) -> Iterator[Run]:
    """Splits pairs of units into runs that are neighbours on both sides, at most `max_units` long."""
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
