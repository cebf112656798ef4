"""Number and size of the blocks in a folder, which all processes that use it count together in one file."""

import fcntl
import os
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass

from baton.kvtransfer.store.private_folder import PrivateFolder

RECORD = struct.Struct("<8sqq")
MAGIC = b"BATONUSE"
FILE = ".usage"
OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Count:
    """A number of blocks and of their bytes, or a change of them."""

    num_blocks: int = 0
    num_bytes: int = 0

    def plus(self, other: "Count") -> "Count":
        """Return the sum."""
        return Count(self.num_blocks + other.num_blocks, self.num_bytes + other.num_bytes)

    def minus(self, other: "Count") -> "Count":
        """Return the difference."""
        return Count(self.num_blocks - other.num_blocks, self.num_bytes - other.num_bytes)


class Usage:
    """The shared count. It is approximate after a crash or a change by another program, until a scan corrects it."""

    def __init__(self, folder: PrivateFolder) -> None:
        self._folder = folder
        self._mutex = threading.Lock()
        self._pending = Count()  # not in the file yet, since another process had its lock

    def read(self) -> Count | None:
        """Return the count; None if there is none, as in a new folder: a scan sets it. Raises StoreUnavailable."""
        with suppress(FileNotFoundError), self._folder.open() as folder:
            fd = os.open(FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                count = _read(fd)
            finally:
                os.close(fd)
            return None if count is None else _not_negative(count.plus(self._pending))
        return None

    def add(self, change: Count) -> None:
        """Change the count, if there is one. Raises StoreUnavailable, and adds the change at the next call."""
        with self._mutex:
            self._pending = self._pending.plus(change)
            with self._folder.open(create=True) as folder:
                try:
                    fd = os.open(FILE, OPEN, dir_fd=folder)
                except FileNotFoundError:
                    self._pending = Count()  # the next scan counts it
                    return
                try:
                    if try_lock(fd):
                        count = _read(fd)
                        if count is not None:
                            _write(fd, count.plus(self._pending))
                        self._pending = Count()
                finally:
                    os.close(fd)

    def set(self, count: Count) -> None:
        """Begin to count from here. Raises StoreUnavailable."""
        with self._mutex, self._folder.open(create=True) as folder:
            fd = os.open(FILE, OPEN | os.O_CREAT, 0o600, dir_fd=folder)
            try:
                self._pending = Count()
                _write(fd, count)
            finally:
                os.close(fd)


def try_lock(fd: int) -> bool:
    """Lock an open file for this descriptor alone; False if another one has a lock. The lock ends with the process."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(fd: int) -> Count | None:
    record = os.pread(fd, RECORD.size, 0)
    if len(record) != RECORD.size:
        return None
    magic, num_blocks, num_bytes = RECORD.unpack(record)
    return Count(num_blocks, num_bytes) if magic == MAGIC and min(num_blocks, num_bytes) >= 0 else None


def _write(fd: int, count: Count) -> None:
    count = _not_negative(count)
    os.pwrite(fd, RECORD.pack(MAGIC, count.num_blocks, count.num_bytes), 0)


def _not_negative(count: Count) -> Count:
    return Count(max(0, count.num_blocks), max(0, count.num_bytes))
