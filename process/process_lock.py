"""Lock on a file, whose holder the kernel names."""

import fcntl
import os
import struct
from pathlib import Path

FLOCK = "hhqqi"  # Linux's `struct flock`: type, whence, start, length, process id


class ProcessLock:
    """Exclusive lock on a file, held until this process ends, however it ends.

    It is a POSIX lock. The kernel returns the holder's process id to any process that asks, so no file has to be
    trusted to name it, and an id that was given to another process since is never mistaken for the holder's. Children
    do not inherit the lock. Nothing else in this process may open the file: closing it there would release the lock.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises BlockingIOError if another process holds it, and OSError if the file is not usable."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        """Release the lock. To be called once."""
        os.close(self._fd)


def lock_holder(path: Path) -> int | None:
    """Return the id of the process that holds the lock on a file, or None.

    The id is 0 or less for a process of another machine or PID namespace. Raises OSError if the file is not readable.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        query = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, query))
    finally:
        os.close(fd)
    return None if kind == fcntl.F_UNLCK else int(pid)
