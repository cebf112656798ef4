"""The files of a directory of weights, and the removal of those that no process uses."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

NAME = re.compile(r".+-[0-9a-f]{32}\.(weights|partial)", re.ASCII)  # see `DiskOffload`; others may be anything


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """A weights file, or one that is being written or was left by a process that was killed meanwhile."""

    path: Path
    num_bytes: int
    used_s: float  # Unix time of the last read or write; a file system may note reads once a day, or never
    is_in_use: bool

    def remove(self) -> bool:
        """Delete the file. Return False if a process uses it or it does not exist. Raises OSError."""
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
        if NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            with suppress(FileNotFoundError), _held(path) as is_free:
                status = path.stat()
                used_s = max(status.st_atime, status.st_mtime)
                found.append(StoredWeights(path, status.st_size, used_s, not is_free))
    return sorted(found, key=lambda each: each.used_s)


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Yield whether no process uses a file, which begins to be used by none meanwhile.

    Readers lock the file itself (see `WeightsFile`). A writer locks the file NAME.lock until it reads what it has
    written. Without locks, as on some network file systems, or permission for them, a file counts as in use.
    """
    with ExitStack() as locks:
        yield all(locks.enter_context(_locked(each)) for each in (path.with_suffix(".lock"), path))


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Lock a file, and yield whether no other process had it locked, or there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        yield isinstance(error, FileNotFoundError)
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
