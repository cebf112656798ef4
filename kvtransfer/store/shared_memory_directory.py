"""Directory in host memory for the blocks of one namespace, which all workers of a user on the host share.

/dev/shm/baton-kv-UID-NAMESPACE/.held is locked (flock, shared) by each process that uses the directory; the kernel
releases the lock of one that is killed. The last process to close it deletes the directory, and each start deletes the
directories of other namespaces that no process holds.
"""

import fcntl
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from baton.kvtransfer.store.envelope import check_namespace
from baton.kvtransfer.store.private_folder import PrivateFolder
from baton.kvtransfer.store.store import StoreUnavailable
from baton.kvtransfer.store.usage import try_lock

SHM = Path("/dev/shm")
FILE = ".held"
MIB = 1 << 20
NUM_ATTEMPTS = 100  # to hold a directory that others delete at the same time


class SharedMemoryDirectory:
    """A directory that exists at least until it is closed."""

    def __init__(self, path: Path, prefix: str, fd: int) -> None:
        """Take over the open and locked file `fd`. `prefix`: of the names of all such directories of this user."""
        self.path = path
        self._prefix = prefix
        self._fd = fd

    def close(self) -> None:
        """Delete the directory if no other process holds it. Idempotent."""
        if self._fd >= 0:
            # Of two processes that close at once, the later one gets the lock: the earlier has lost its shared one.
            if try_lock(self._fd) and _is_at(self.path, self._fd):
                _delete(self.path, self._prefix)
            os.close(self._fd)
        self._fd = -1


def shared_memory_directory(namespace: str, capacity_bytes: int, parent: Path = SHM) -> SharedMemoryDirectory:
    """Create or find the directory of a namespace, and hold it. Raises StoreUnavailable if `parent` is too small."""
    prefix = f"baton-kv-{os.geteuid()}-"
    path = parent / f"{prefix}{check_namespace(namespace)}"
    try:
        space = os.statvfs(parent)
        total_bytes = space.f_blocks * space.f_frsize
        if total_bytes < capacity_bytes:
            raise StoreUnavailable(
                f"{parent} has {total_bytes // MIB} MiB, fewer than the {-(-capacity_bytes // MIB)} MiB for KV blocks: "
                "enlarge it (docker run --shm-size, in Kubernetes an emptyDir of medium Memory), or ask for fewer"
            )
        _delete_unused(parent, prefix, path.name)
    except OSError as error:
        raise StoreUnavailable(f"{parent}: {error.strerror}; blocks in host memory need it") from error
    for _ in range(NUM_ATTEMPTS):
        fd = _hold(path)
        if fd is not None:
            return SharedMemoryDirectory(path, prefix, fd)
    raise StoreUnavailable(f"{path}: other processes deleted it {NUM_ATTEMPTS} times")


def _hold(path: Path) -> int | None:
    """Return the open and locked file of a directory, which is created; None if it was deleted meanwhile."""
    folder = PrivateFolder(path)
    with suppress(FileNotFoundError), folder.translated_errors(FileNotFoundError):
        fd = _open_held(folder)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            if _is_at(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    return None


def _open_held(folder: PrivateFolder) -> int:
    with folder.open() as parent:
        return os.open(FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)


def _is_at(path: Path, fd: int) -> bool:
    """Return whether the file is still the one that other processes find there."""
    try:
        return os.path.samestat(os.stat(path / FILE, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def _delete_unused(parent: Path, prefix: str, own_name: str) -> None:
    for name in os.listdir(parent):
        if name.startswith(prefix) and name != own_name:
            with suppress(OSError, StoreUnavailable):  # another user's, or deleted meanwhile
                fd = _open_held(PrivateFolder(parent / name))
                try:
                    if try_lock(fd) and _is_at(parent / name, fd):
                        _delete(parent / name, prefix)
                finally:
                    os.close(fd)


def _delete(path: Path, prefix: str) -> None:
    """Delete a directory whose file is locked. It is renamed first, so that no other process uses what remains of it.

    If this process is killed meanwhile, a later start finds the renamed directory.
    """
    remains = path.with_name(f"{prefix}.{secrets.token_hex(8)}")  # no namespace begins with a dot
    with suppress(OSError):
        path.rename(remains)
        shutil.rmtree(remains)
