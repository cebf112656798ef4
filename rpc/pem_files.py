"""Certificates, keys and authorities from PEM files, with errors that name the file."""

import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from baton.rpc.background_check import BackgroundCheck
from baton.settings.regular_file import open_regular


def load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Load a certificate and its key. Raises OSError for files that cannot be read or do not match."""
    for path in (cert, key):
        open_regular(path).close()  # OpenSSL's error does not name the file, and it would wait for a FIFO

    def no_password() -> str:
        raise OSError(f"{key} is encrypted; a server needs a key without a password")

    try:
        context.load_cert_chain(cert, key, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise OSError(f"the key in {key} is not that of the certificate in {cert}: {error.reason}") from error
        raise OSError(f"{cert} and {key} are not a certificate and its key in PEM: {error}") from error


def load_authorities(context: ssl.SSLContext, path: str) -> None:
    """Load the certificate authorities to trust. Raises OSError for a file without any."""
    open_regular(path).close()
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise OSError(f"{path} has no certificate of an authority in PEM: {error}") from error


T = TypeVar("T")

logger = logging.getLogger(__name__)

Stamp = Sequence[tuple[int, int, int]]


class FileWatch(Generic[T]):
    """A value made from files, renewed when they change."""

    def __init__(self, what: str, paths: Sequence[str], make: Callable[[], T]) -> None:
        """`what` names the files in the log; `make` raises OSError for files that it cannot use."""
        self.version = 1  # incremented whenever the value changes
        self._what = what
        self._paths = paths
        self._make = make
        self._stamp = self._logged_stamp = _stamp(paths)
        self._value = make()
        self._check = BackgroundCheck(what, self._renew)

    def look(self) -> T:
        """Return the value of the current files.

        Returns the previous one while they do not match, as in mid-change, or while a read of them hangs. Thread-safe.
        """
        self._check.run()
        return self._value

    def _renew(self) -> None:
        stamp = _stamp(self._paths)
        if stamp == self._stamp:
            return
        try:
            value = self._make()
        except OSError as error:
            if stamp != self._logged_stamp:
                logger.warning("%s changed and cannot be read; keeping the previous ones: %s", self._what, error)
                self._logged_stamp = stamp
            return  # the next look tries again: the cause may be a lack of file descriptors
        self._stamp = stamp
        if value != self._value:
            self._value = value
            self.version += 1
            logger.info("%s were replaced", self._what)


def _stamp(paths: Sequence[str]) -> Stamp:
    """Return a value that changes when a file is replaced or written."""
    stamps = []
    for path in paths:
        try:
            found = Path(path).stat()
        except OSError:
            stamps.append((0, 0, 0))
        else:
            stamps.append((found.st_mtime_ns, found.st_ino, found.st_size))
    return stamps
