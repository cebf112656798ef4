"""Addresses for all weights, of which only some have memory."""

import ctypes
import mmap

import torch
from torch import Tensor

from baton.engine.errors import EngineError

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 << 20
NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which Python's mmap does not name: addresses are not counted as memory

_madvise = ctypes.CDLL(None, use_errno=True).madvise  # unlike mmap's method, without the interpreter lock
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class AddressSpace:
    """A range of addresses, one for each byte of a file.

    Native products keep the addresses of their weights. A weight therefore has the same address as long as the model
    exists, and only its pages come and go: reading into them adds memory, `drop` gives it back.
    """

    def __init__(self, num_bytes: int) -> None:
        """Raises EngineError if the process cannot have so many addresses."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
        try:
            self._map = mmap.mmap(-1, num_bytes, flags=flags)
        except OSError as error:
            raise EngineError(
                f"weights_offload: {num_bytes / 1e9:.2f} GB of addresses cannot be reserved ({error.strerror}); allow "
                "them (ulimit -v, and vm.overcommit_memory other than 2)"
            ) from error
        self._view = memoryview(self._map)
        self._address = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
        # Where the kernel gives all memory huge pages, one byte of a small unit would otherwise take 2 MiB.
        _madvise(self._address, num_bytes, mmap.MADV_NOHUGEPAGE)

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> Tensor:
        """Return a tensor at an offset."""
        count = 1
        for size in shape:
            count *= size
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=offset).view(shape)

    def memory(self, offset: int, num_bytes: int) -> memoryview:
        """Return a range to read into."""
        return self._view[offset : offset + num_bytes]

    def prefer_huge_pages(self, offset: int, num_bytes: int) -> None:
        """Let a range that is read and dropped as a whole have huge pages, as far as they lie within it.

        Reads into fresh small pages were half as fast. Without huge pages in the kernel, nothing changes.
        """
        first = -(-(self._address + offset) // HUGE_PAGE) * HUGE_PAGE
        end = (self._address + offset + num_bytes) // HUGE_PAGE * HUGE_PAGE
        if first < end:
            _madvise(first, end - first, mmap.MADV_HUGEPAGE)

    def drop(self, offset: int, num_bytes: int) -> None:
        """Give the memory of a range of whole pages back; its contents are then zeros."""
        if _madvise(self._address + offset, num_bytes, mmap.MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), "madvise")
