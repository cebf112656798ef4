"""A folder of one user, and the folders in it, which are opened without following links."""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from baton.kvtransfer.store.store import StoreUnavailable

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MODE = 0o700
NUM_ATTEMPTS = 10  # to open a folder that others delete
REMEDIES = {
    errno.ENOSPC: "; free some space, or lower the store's capacity",
    errno.EDQUOT: "; raise the quota, or lower the store's capacity",
    errno.EROFS: "; choose a directory that can be written",
    errno.EACCES: "; choose a directory of this user",
    errno.EPERM: "; choose a directory of this user",
    errno.ENOLCK: "; the file system must support flock",
    errno.ENOTSUP: "; the file system must support flock",
    errno.ENOTDIR: ", or it is a link, which is not followed; remove it",
    errno.ELOOP: "; links are not followed; remove it",
}


class PrivateFolder:
    """The path of a folder that only this process's user may enter."""

    def __init__(self, path: Path) -> None:
        """Create the folder if it is missing; its parent must exist. Raises StoreUnavailable."""
        self.path = path
        with self.open(create=True):
            pass

    @contextmanager
    def open(self, *names: str, create: bool = False) -> Iterator[int]:
        """Yield a descriptor of the folder, or of the one at `names` below it, which `create` makes if it is missing.

        Raises StoreUnavailable for any OSError, also one that is raised inside the context, except FileNotFoundError
        without `create`.
        """
        with self.translated_errors(*(() if create else (FileNotFoundError,))):
            fd = self._open(names, create)
            try:
                yield fd
            finally:
                os.close(fd)

    @contextmanager
    def translated_errors(self, *passing: type[OSError]) -> Iterator[None]:
        """Return a context that turns each OSError into StoreUnavailable, except those of the types `passing`."""
        try:
            yield
        except passing:
            raise
        except OSError as error:
            place = self.path if not isinstance(error.filename, str) else self.path / error.filename
            reason = f"{error.strerror or error}{REMEDIES.get(error.errno or 0, '')}"
            raise StoreUnavailable(f"{place}: {reason}") from error

    def _open(self, names: Sequence[str], create: bool) -> int:
        for _ in range(NUM_ATTEMPTS - 1 if create else 0):
            with suppress(FileNotFoundError):  # another process has deleted an empty folder meanwhile
                return self._open_once(names, create)
        return self._open_once(names, create)

    def _open_once(self, names: Sequence[str], create: bool) -> int:
        fd = self._open_root(create)
        for name in names:
            parent = fd
            try:
                fd = _open_below(parent, name, create)
            finally:
                os.close(parent)
        return fd

    def _open_root(self, create: bool) -> int:
        try:
            fd = os.open(self.path, FOLDER)
        except FileNotFoundError:
            if not create:
                raise
            try:
                self.path.mkdir(MODE)
            except FileExistsError:  # another process was faster
                pass
            except FileNotFoundError as error:
                raise StoreUnavailable(f"{self.path.parent}: no such directory; create it") from error
            fd = os.open(self.path, FOLDER)
        status = os.fstat(fd)
        problem = ""
        if status.st_uid != os.geteuid():
            problem = f"it belongs to the user {status.st_uid}, not to {os.geteuid()}; choose another directory"
        elif stat.S_IMODE(status.st_mode) & 0o077:
            problem = f"other users may enter it (mode {stat.S_IMODE(status.st_mode):o}); run chmod 700 on it"
        if problem:
            os.close(fd)
            raise StoreUnavailable(f"{self.path}: {problem}")
        return fd


def _open_below(parent: int, name: str, create: bool) -> int:
    try:
        return os.open(name, FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):  # another process or thread was faster
        os.mkdir(name, MODE, dir_fd=parent)
    return os.open(name, FOLDER, dir_fd=parent)
