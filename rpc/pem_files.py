"""Certificates, keys and authorities from PEM files, with errors that name the file."""

import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar


def load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Loads a certificate and its key. Raises OSError for files that cannot be read or do not go together."""
    for path in (cert, key):
        Path(path).open("rb").close()  # OpenSSL would not say which one it cannot open

    def no_password() -> str:
        raise OSError(f"{key} is encrypted; a server needs a key that it can read by itself")

    try:
        context.load_cert_chain(cert, key, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise OSError(f"the key in {key} is not that of the certificate in {cert}: {error.reason}") from error
        raise OSError(f"{cert} and {key} are no certificate and its key in PEM: {error}") from error


def load_authorities(context: ssl.SSLContext, path: str) -> None:
    """Loads the authorities whose certificates are taken. Raises OSError for a file that has none."""
    Path(path).open("rb").close()
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise OSError(f"{path} has no authority's certificate in PEM: {error}") from error


T = TypeVar("T")

logger = logging.getLogger(__name__)

Stamp = Sequence[tuple[int, int, int]]


class FileWatch(Generic[T]):
    """Owns what was last made of the files."""

    def __init__(self, what: str, paths: Sequence[str], make: Callable[[], T]) -> None:
        """`what` names the files in the log; `make` raises OSError for files of which nothing can be made."""
        self.version = 1  # one more whenever something else was made
        self._what = what
        self._paths = paths
        self._make = make
        self._stamp = self._told_stamp = _stamp(paths)
        self._made = make()

    def look(self) -> T:
        """What is made of the files of now; of some that do not go together, as in mid-change, what was made before."""
        stamp = _stamp(self._paths)
        if stamp == self._stamp:
            return self._made
        try:
            made = self._make()
        except OSError as error:
            if stamp != self._told_stamp:
                logger.warning("%s changed and cannot be read; going on with those before: %s", self._what, error)
                self._told_stamp = stamp
            return self._made  # and the next look tries again: what failed may have been the lack of a descriptor
        self._stamp = stamp
        if made != self._made:
            self._made = made
            self.version += 1
            logger.info("%s were replaced", self._what)
        return self._made


def _stamp(paths: Sequence[str]) -> Stamp:
    """Something that differs once a file was replaced or written."""
    stamps = []
    for path in paths:
        try:
            found = Path(path).stat()
        except OSError:
            stamps.append((0, 0, 0))
        else:
            stamps.append((found.st_mtime_ns, found.st_ino, found.st_size))
    return stamps
