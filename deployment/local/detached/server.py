"""The server's side of a detached start: its lock, its record, and its reports to the program that started it."""

import logging
from dataclasses import replace

from baton.deployment.local.detached.folder import ServerFolder
from baton.deployment.local.detached.record import ServerRecord, write_record
from baton.process.errors import PlainError
from baton.process.process_lock import ProcessLock

logger = logging.getLogger(__name__)


class NameInUse(PlainError):
    """Another server has taken the name."""


class DetachedServer:
    """Owner of the lock and the record of this process's server."""

    def __init__(self, folder: ServerFolder, record: ServerRecord) -> None:
        """Take the lock and write the record. Raises NameInUse and OSError."""
        try:
            self._lock = ProcessLock(folder.lock_path)
        except BlockingIOError:
            raise NameInUse(f"a server named {folder.name} has just started") from None
        self._folder = folder
        self._record = record
        write_record(folder.record_path, record)

    def is_starting(self, model: str, url: str, drain_timeout_s: float) -> None:
        """Record what is going to be served, where, and for how long its shutdown waits for requests."""
        self._update(replace(self._record, model=model, url=url, drain_timeout_s=drain_timeout_s))

    def is_ready(self) -> None:
        """Record that the server is ready."""
        self._update(replace(self._record, state="ready"))

    def is_stopping(self) -> None:
        """Record that the server shuts down."""
        self._update(replace(self._record, state="stopping"))

    def close(self) -> None:
        """Remove the record and release the lock."""
        self._folder.forget()
        self._lock.release()

    def _update(self, record: ServerRecord) -> None:
        self._record = record
        try:
            write_record(self._folder.record_path, record)
        except OSError as error:  # a full disk must not stop the server
            logger.warning("cannot write %s: %s", self._folder.record_path, error)
