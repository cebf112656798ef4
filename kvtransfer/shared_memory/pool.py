"""Memory of a pool that other processes of the host can map."""

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

# Absent from Python's mmap module: linux/mman.h, since Linux 5.14.
MADV_POPULATE_READ = 22
MADV_POPULATE_WRITE = 23
POPULATE_STEP_BYTES = 16 << 20
# A reader may rely on the size: a file that shrinks under a mapping kills whoever touches it.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h, since Linux 5.1: nobody else can ever write, whatever it does with the file


class SharedPool:
    """Owns an anonymous file in memory (memfd) and one tensor in it.

    The pages are freed with the last mapping of any process, so that nothing is left behind after a `kill -9`.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("baton-kv-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._tensor: Tensor | None = None

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The pool's tensor, zeroed; called once.

        All pages are taken at once: too little memory shows here and not in the middle of a request.
        """
        if self._tensor is not None:
            raise ValueError("a shared pool holds one tensor, which was allocated before")
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
        """The file; its byte 0 is the first byte of block 0."""
        return self._fd

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is this pool's own."""
        return self._tensor is not None and (tensor.data_ptr(), tensor.nbytes) == (
            self._tensor.data_ptr(),
            self._tensor.nbytes,
        )

    def close(self) -> None:
        """Gives the file back; the memory goes with the last tensor and the last peer's mapping. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._tensor = None


def populate(mapping: mmap.mmap, advice: int) -> None:
    """Makes all pages of a mapping present; older kernels do it page by page at first touch instead.

    In steps, since Python holds its lock during each. Raises MemoryError.
    """
    for start in range(0, len(mapping), POPULATE_STEP_BYTES):
        try:
            mapping.madvise(advice, start, min(POPULATE_STEP_BYTES, len(mapping) - start))
        except OSError as error:
            if error.errno == errno.EINVAL:
                return
            raise MemoryError(f"no memory for a pool of {len(mapping)} bytes: {error}") from error
