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
        """Return the count; None if there is none, for example before the first scan. Raises StoreUnavailable."""
        with suppress(FileNotFoundError), self._folder.open() as folder:
            fd = os.open(FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                count = _read(fd)
            finally:
                os.close(fd)
            return None if count is None else _not_negative(count.plus(self._pending))
        return None

    def add(self, change: Count) -> Count:
        """Change the count, and return the new one. Raises StoreUnavailable, and adds the change at the next call."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._mutex:
            self._pending = self._pending.plus(change)
            with self._folder.open(create=True) as folder:
                fd = os.open(FILE, flags, 0o600, dir_fd=folder)
                try:
                    is_locked = try_lock(fd)
                    total = _not_negative((_read(fd) or Count()).plus(self._pending))
                    if is_locked:
                        os.pwrite(fd, RECORD.pack(MAGIC, total.num_blocks, total.num_bytes), 0)
                        self._pending = Count()
                finally:
                    os.close(fd)
            return total


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


def _not_negative(count: Count) -> Count:
    return Count(max(0, count.num_blocks), max(0, count.num_bytes))
