"""Copies between memory and the open files of a directory's blocks."""

import os
from typing import Protocol


class BlockFiles(Protocol):
    """Reads and writes the open file of one block: a header, then the payload. Calls may come from several threads."""

    def read(self, fd: int, header: bytearray, payload: memoryview) -> bool:
        """Fill both from a file; False if it is shorter. Raises OSError, StoreUnavailable."""
        ...

    def write(self, fd: int, header: bytes, payload: memoryview) -> None:
        """Write both to an empty file. Raises OSError, StoreUnavailable."""
        ...

    def close(self) -> None:
        """Free what the copies use; no call may follow or be in progress."""
        ...


class SystemFiles:
    """Copies by the kernel's `preadv` and `writev`."""

    def read(self, fd: int, header: bytearray, payload: memoryview) -> bool:
        """Fill both from a file; False if it is shorter. A system call reads at most 2 GiB."""
        views, position = [memoryview(header), payload], 0
        while views:
            num_bytes = os.preadv(fd, views, position)
            if not num_bytes:
                return False
            position += num_bytes
            views = _after(views, num_bytes)
        return True

    def write(self, fd: int, header: bytes, payload: memoryview) -> None:
        """Write both to an empty file."""
        views = [memoryview(header), payload]
        while views:
            views = _after(views, os.writev(fd, views))

    def close(self) -> None:
        """Return at once: nothing is held."""


def _after(views: list[memoryview], num_bytes: int) -> list[memoryview]:
    """Return what follows the first `num_bytes` of the views."""
    rest = []
    for view in views:
        if num_bytes < len(view):
            rest.append(view[num_bytes:])
        num_bytes = max(0, num_bytes - len(view))
    return rest
