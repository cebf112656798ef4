"""Writes that survive a crash: each is complete or absent afterwards."""

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_S = 30.0  # maximum wait for a lock, which is held for ms, or while all files are counted
POLL_S = 0.002


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Create or replace a file atomically. `durable`: it is on the disk afterwards."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def move(source: Path, target: Path) -> None:
    """Rename a folder durably. Raises OSError if the target has content."""
    source.rename(target)
    sync_folder(target.parent)
    sync_folder(source.parent)


def try_lock(fd: int) -> bool:
    """Lock a file for this open file alone; False if another one holds it. The lock ends with its process.

    The file must be open for writing, as NFS requires.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Wait for the lock of a file, which is created, and hold it. Yield the descriptor of the open file.

    Raises TimeoutError, an OSError, after `LOCK_S`.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end_s = time.monotonic() + LOCK_S
        while not try_lock(fd):
            if time.monotonic() >= end_s:
                raise TimeoutError(f"another process has held the lock of {path} for {LOCK_S:.0f} s")
            time.sleep(POLL_S)
        yield fd
    finally:
        os.close(fd)


def check_locks(folder: Path) -> None:
    """Raise OSError unless the folder's file system has working locks."""
    path = folder / f".lock.{secrets.token_hex(8)}"
    with path.open("xb") as first, path.open("r+b") as second:
        path.unlink()
        if not try_lock(first.fileno()) or try_lock(second.fileno()):
            raise OSError(errno.ENOLCK, "the file system's locks (flock) do not work")
