"""Pool memory that other processes on the host can map."""

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

# From linux/mman.h, since Linux 5.14; missing in Python's mmap module.
MADV_POPULATE_READ = 22
MADV_POPULATE_WRITE = 23
POPULATE_STEP_BYTES = 16 << 20
# Readers rely on a fixed size: accessing a mapping of a file that has shrunk raises SIGBUS.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h, since Linux 5.1: forbids every write but through mappings that exist


class SharedPool:
    """An anonymous file in memory (memfd) and one tensor in it.

    The kernel frees the pages with the last mapping in any process, so a `kill -9` leaves nothing behind.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("baton-kv-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._tensor: Tensor | None = None

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Allocate the pool's tensor, zeroed; called once.

        All pages are allocated now, so that a lack of memory shows here and not during a request. Raises ValueError for
        a second call or an empty shape, MemoryError.
        """
        if self._tensor is not None:
            raise ValueError("a shared pool holds one tensor, which is allocated already")
        num_bytes = prod(shape) * dtype.itemsize
        if num_bytes <= 0:
            raise ValueError(f"a shared pool cannot hold a tensor of shape {tuple(shape)}")
        os.ftruncate(self._fd, num_bytes)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, SEALS)
        mapping = mmap.mmap(self._fd, num_bytes)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
        populate(mapping, MADV_POPULATE_WRITE)
        self._tensor = torch.frombuffer(mapping, dtype=torch.uint8).view(dtype).view(*shape)
        return self._tensor

    @property
    def fd(self) -> int:
        """Descriptor of the file, which starts with block 0."""
        return self._fd

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor is the one allocated from this pool."""
        return self._tensor is not None and (tensor.data_ptr(), tensor.nbytes) == (
            self._tensor.data_ptr(),
            self._tensor.nbytes,
        )

    def close(self) -> None:
        """Close the file; the memory is freed with the last tensor and the last peer's mapping. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._tensor = None


def populate(mapping: mmap.mmap, advice: int) -> None:
    """Fault in all pages of a mapping, in steps of 16 MiB, since Python holds the GIL during each. Raises MemoryError.

    No-op before Linux 5.14, where pages are faulted in at first access.
    """
    for start in range(0, len(mapping), POPULATE_STEP_BYTES):
        try:
            mapping.madvise(advice, start, min(POPULATE_STEP_BYTES, len(mapping) - start))
        except OSError as error:
            if error.errno == errno.EINVAL:
                return
            raise MemoryError(f"no memory for a pool of {len(mapping)} bytes: {error}") from error
