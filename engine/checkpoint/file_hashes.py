"""On-disk cache of large files' hashes, so that a restarted process need not read the files again."""

import contextlib
import json
import logging
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.checkpoint.stored_tensor import file_status
from baton.engine.errors import InvalidCheckpoint

log = logging.getLogger(__name__)

VERSION = 1  # increment when hashes are computed differently
MIN_BYTES = 256 << 20  # smaller files are not cached: reading them takes less than 0.1 s
SETTLED_NS = 10_000_000_000  # a younger file may still change without getting a new timestamp
HASH_DIGITS = 32


@dataclass(frozen=True, slots=True)
class FileState:
    """Attributes that change with a file's content; unlike its mtime, the inode's change time cannot be set back."""

    device: int
    inode: int
    num_bytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> "FileState":
        """Return the state of a file, following symbolic links. Raises InvalidCheckpoint."""
        return cls.of_stat(file_status(path))

    @classmethod
    def of_stat(cls, status: os.stat_result) -> "FileState":
        """Return the state of a file from the result of `stat`."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class FileHashes:
    """Cache directory with one small entry per large file, named by a hash of the file's path.

    Several processes may share it: entries are written under a temporary name and renamed, so that readers never see
    half an entry. Entries that are damaged, or belong to another state of the file, are ignored. If the directory is
    not writable, nothing is cached.
    """

    def __init__(self, directory: Path, min_bytes: int = MIN_BYTES) -> None:
        self._directory = directory
        self._min_bytes = min_bytes

    def find(self, path: Path, state: FileState) -> str | None:
        """Return the cached hash of a file in this state; None if there is none."""
        if state.num_bytes < self._min_bytes:
            return None
        try:
            entry = JsonObject.read(self._entry(path)).values
        except (InvalidCheckpoint, OSError):
            return None
        found = entry.pop("hash", None)
        if entry != _key(path, state) or not isinstance(found, str) or len(found) != HASH_DIGITS:
            return None
        return found

    def store(self, path: Path, state: FileState, found: str) -> None:
        """Cache a hash, unless the file is small or was just written."""
        age_ns = time.time_ns() - max(state.modified_ns, state.changed_ns)
        if state.num_bytes < self._min_bytes or age_ns < SETTLED_NS:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix="new-", dir=self._directory)
            try:
                with open(descriptor, "w") as file:
                    json.dump({**_key(path, state), "hash": found}, file)
                os.replace(name, self._entry(path))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
        except OSError as error:
            log.info("the hash of %s was not cached: %s", path, error)

    def _entry(self, path: Path) -> Path:
        return self._directory / f"{blake2b(os.fsencode(path.resolve()), digest_size=16).hexdigest()}.json"


def _key(path: Path, state: FileState) -> dict[str, object]:
    return {"version": VERSION, "path": str(path.resolve()), **asdict(state)}
