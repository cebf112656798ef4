"""The hash of every byte of a checkpoint's weights, computed while they are loaded.

Two checkpoints that differ anywhere must not exchange KV: a request would go on with another model's weights. The hash
(xxh3_128 of each file) tells files apart that differ by accident. It is no protection from an attacker who makes
collisions: whoever may write the checkpoint decides what it computes anyway.
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

BUFFER_BYTES = 1 << 20  # which stays in a core's cache between its read and its hash
MAX_THREADS = 2  # one hashes some GB/s of files that are in memory; disks are faster with two reads, and so is loading
CACHE_DIRECTORY = Path(HF_ASSETS_CACHE) / "baton" / "file-hashes"  # below HF_HOME


class WeightsHash:
    """Owns the threads that hash a checkpoint's files; used as a context, they end with it."""

    def __init__(self, directory: Path, cache_directory: Path = CACHE_DIRECTORY) -> None:
        """Begins at once. Raises InvalidCheckpoint for files that are missing."""
        self._files = {path: FileState.of(path) for path in weight_files(directory)}
        self._known = FileHashes(cache_directory)
        self._stopping = Event()
        self._threads = ThreadPoolExecutor(min(MAX_THREADS, len(self._files)), "weights-hash")
        # Each process of a machine takes the files in an order of its own, and looks for a file's hash before it reads
        # the file: together they read most files once.
        order = random.sample(sorted(self._files), len(self._files))
        self._hashes: dict[Path, Future[str]] = {path: self._threads.submit(self._hash, path) for path in order}

    def __enter__(self) -> "WeightsHash":
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the threads; what they have not read is not read."""
        self._stopping.set()
        self._threads.shutdown(cancel_futures=True)

    def revision(self) -> str:
        """Wait for the hash of all files, with their names.

        Equal wherever the files are equal. Raises InvalidCheckpoint if a file has changed since this began: what was
        loaded in between need not be what was hashed.
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
                        raise EngineEnded("the weights were not hashed to their end")
                _check(path, self._files[path], FileState.of_stat(os.fstat(file.fileno())))
        except OSError as error:
            raise InvalidCheckpoint(f"{path} cannot be read: {error.strerror}") from error
        return digest.hexdigest()


def weights_revision(directory: Path) -> str:
    """The hash of a checkpoint's weights, if there is nothing else to do in the meantime. Raises InvalidCheckpoint."""
    with WeightsHash(directory) as weights_hash:
        return weights_hash.revision()


def _check(path: Path, before: FileState, now: FileState) -> None:
    if now != before:
        raise InvalidCheckpoint(f"{path} was changed while it was read; start again once it stays as it is")
