"""Hash of a checkpoint's weights, over every byte, computed while they are loaded.

Checkpoints that differ anywhere must not exchange KV: a request would continue with another model's weights. The hash
(xxh3_128 of each file) detects accidental differences. It does not protect against deliberate collisions: an attacker
with write access to the checkpoint controls its output anyway.
"""

import os
import random
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from threading import Event
from types import TracebackType

from huggingface_hub.constants import HF_ASSETS_CACHE
from xxhash import xxh3_128

from baton.engine.checkpoint.file_hashes import FileHashes, FileState
from baton.engine.checkpoint.tensor_index import weight_files
from baton.engine.errors import EngineEnded, InvalidCheckpoint

BUFFER_BYTES = 1 << 20  # small enough to stay in a core's cache between reading and hashing
MAX_THREADS = 2  # one thread hashes some GB/s of cached files; two parallel reads make disks, and so loading, faster
CACHE_DIRECTORY = Path(HF_ASSETS_CACHE) / "baton" / "file-hashes"  # below HF_HOME


class WeightsHash:
    """Threads that hash a checkpoint's files; they end with the `with` block."""

    def __init__(self, directory: Path, cache_directory: Path = CACHE_DIRECTORY) -> None:
        """Start hashing. Raises InvalidCheckpoint for missing files."""
        self._files = {path: FileState.of(path) for path in weight_files(directory)}
        self._known = FileHashes(cache_directory)
        self._stopping = Event()
        self._threads = ThreadPoolExecutor(min(MAX_THREADS, len(self._files)), "weights-hash")
        # Each process hashes the files in a random order and checks the cache before it reads a file, so that the
        # processes of a machine together read most files only once.
        order = random.sample(sorted(self._files), len(self._files))
        self._hashes: dict[Path, Future[str]] = {path: self._threads.submit(self._hash, path) for path in order}

    def __enter__(self) -> "WeightsHash":
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the threads, without hashing the remaining files."""
        self._stopping.set()
        self._threads.shutdown(cancel_futures=True)

    def revision(self) -> str:
        """Wait for the hash of all files, with their names.

        Equal files give equal hashes on all machines. Raises InvalidCheckpoint if a file has changed since the start:
        the loaded bytes might then differ from the hashed ones.
        """
        digest = blake2b(digest_size=16)
        for path, before in self._files.items():
            digest.update(f"{path.name}:{before.num_bytes}:{self._hashes[path].result()}\n".encode())
        for path, before in self._files.items():
            _check(path, before, FileState.of(path))
        return digest.hexdigest()

    def _hash(self, path: Path) -> str:
        known = self._known.find(path, self._files[path])
        if known is not None:
            return known
        found = self._read(path)
        self._known.store(path, self._files[path], found)
        return found

    def _read(self, path: Path) -> str:
        digest, buffer = xxh3_128(), memoryview(bytearray(BUFFER_BYTES))
        try:
            with path.open("rb", buffering=0) as file:
                _check(path, self._files[path], FileState.of_stat(os.fstat(file.fileno())))
                while count := file.readinto(buffer):
                    digest.update(buffer[:count])
                    if self._stopping.is_set():
                        raise EngineEnded("hashing of the weights was stopped")
                _check(path, self._files[path], FileState.of_stat(os.fstat(file.fileno())))
        except OSError as error:
            raise InvalidCheckpoint(f"{path} cannot be read: {error.strerror}") from error
        return digest.hexdigest()


def _check(path: Path, before: FileState, now: FileState) -> None:
    if now != before:
        raise InvalidCheckpoint(f"{path} changed while it was read; restart once it no longer changes")
