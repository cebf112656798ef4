"""Writes that survive a crash: each is complete or absent afterwards."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
    """Lock an open file for this open file alone; False if another one holds it. The lock ends with its process."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Wait for the lock of a file, which is created, and hold it. Yield the descriptor of the open file."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)
