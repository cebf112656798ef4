"""Copies between memory and the open files of a directory's blocks."""

import os
from collections.abc import Iterator
from typing import Protocol

PART_BYTES = 512 << 10  # of a payload that is read at once; fits the cache of a processor's core


class BlockFiles(Protocol):
    """Reads and writes the open file of one block: a header, then the payload. Calls may come from several threads."""

    def read(self, fd: int, header: bytearray, payload: memoryview) -> Iterator[memoryview]:
        """Fill both from a file, and yield the payload part by part; the parts are fewer if the file is shorter.

        Raises OSError, StoreUnavailable.
        """
        ...

    def write(self, fd: int, header: bytes, payload: memoryview) -> None:
        """Write both to an empty file. Raises OSError, StoreUnavailable."""
        ...

    def close(self) -> None:
        """Free what the copies use; no call may follow or be in progress."""
        ...


class SystemFiles:
    """Copies by the kernel's `preadv` and `writev`."""

    def read(self, fd: int, header: bytearray, payload: memoryview) -> Iterator[memoryview]:
        """Fill both from a file, and yield the payload part by part; the parts are fewer if the file is shorter."""
        for _ in _read_parts(fd, memoryview(header), 0):
            pass
        yield from _read_parts(fd, payload, len(header))

    def write(self, fd: int, header: bytes, payload: memoryview) -> None:
        """Write both to an empty file."""
        views = [memoryview(header), payload]
        while views:
            views = _after(views, os.writev(fd, views))

    def close(self) -> None:
        """Return at once: nothing is held."""


def _read_parts(fd: int, into: memoryview, position: int) -> Iterator[memoryview]:
    """Fill memory from a position of a file, and yield it part by part, up to the end of the file."""
    start = 0
    while start < len(into):
        part = into[start : start + PART_BYTES]
        num_bytes = os.preadv(fd, [part], position + start)
        if not num_bytes:
            return
        yield part[:num_bytes]
        start += num_bytes


def _after(views: list[memoryview], num_bytes: int) -> list[memoryview]:
    """Return what follows the first `num_bytes` of the views."""
    rest = []
    for view in views:
        if num_bytes < len(view):
            rest.append(view[num_bytes:])
        num_bytes = max(0, num_bytes - len(view))
    return rest
