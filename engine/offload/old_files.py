"""The files of a directory of weights, and the removal of those that no process uses."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = (".weights", ".partial")


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """A weights file, or one that is being written or was left by a process that was killed meanwhile."""

    path: Path
    num_bytes: int
    used_s: float  # Unix time of the last read or write; a file system may note reads once a day, or never
    is_in_use: bool

    def remove(self) -> bool:
        """Delete the file; False if a process uses it, or it is gone. Raises OSError."""
        with _held(self.path) as is_free:
            if not is_free:
                return False
            with suppress(FileNotFoundError):
                self.path.unlink()
                return True
        return False


def stored_weights(directory: Path) -> list[StoredWeights]:
    """Return the files of a directory, the least recently used first. Raises OSError."""
    found = []
    for path in directory.iterdir():
        if path.suffix in SUFFIXES and path.is_file() and not path.is_symlink():
            with suppress(FileNotFoundError), _held(path) as is_free:
                status = path.stat()
                used_s = max(status.st_atime, status.st_mtime)
                found.append(StoredWeights(path, status.st_size, used_s, not is_free))
    return sorted(found, key=lambda each: each.used_s)


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Yield whether no process uses a file, which begins to be used by none meanwhile.

    Readers lock the file itself (see `WeightsFile`), and a writer locks the file NAME.lock. Without locks, as on some
    network file systems, a file counts as in use.
    """
    lock = path if path.suffix == ".weights" else path.with_suffix(".lock")
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        yield _is_locked_by_us(descriptor)
    finally:
        os.close(descriptor)


def _is_locked_by_us(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
