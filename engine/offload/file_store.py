"""Directory of weights files, which processes of one or several machines share."""

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub.constants import HF_ASSETS_CACHE

from baton.engine.checkpoint.file_hashes import FileHashes
from baton.engine.checkpoint.weights_hash import CACHE_DIRECTORY
from baton.engine.errors import EngineError
from baton.engine.offload.unit_reads import THREADS
from baton.engine.offload.weights_file import DamagedFile, WeightsFile

log = logging.getLogger(__name__)

DEFAULT_DIRECTORY = Path(HF_ASSETS_CACHE) / "baton" / "weights"  # below HF_HOME

MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class FileStore:
    """Weights files by name, each written once under a temporary name and then renamed."""

    directory: Path

    def find(self, name: str) -> WeightsFile | None:
        """Return a complete file, whose checksums were compared; None if there is none. Raises EngineError."""
        path = self._path(name)
        try:
            file = WeightsFile(path)
            try:
                _verify(file)
            except BaseException:
                file.close()
                raise
        except FileNotFoundError:
            return None
        except OSError as error:
            raise EngineError(f"weights_offload_dir: {path} cannot be read: {error.strerror}") from error
        except EngineError as error:
            log.warning("%s is laid out again: %s", path, error)
            return None
        return file

    def log_others(self, name: str) -> None:
        """Log the directory's other files, such as those of a checkpoint's former versions: nothing removes them."""
        try:
            sizes = {path: path.stat().st_size for path in self.directory.glob("*.weights") if path.stem != name}
        except OSError:  # removed meanwhile, or the directory cannot be read
            return
        if sizes:
            log.info(
                "%s has %.2f GB in %d weights files of other models or versions; remove those that are not needed: %s",
                *(self.directory, sum(sizes.values()) / 1e9, len(sizes)),
                ", ".join(sorted(path.name for path in sizes)[:MAX_LISTED]),
            )

    @contextmanager
    def writing(self, name: str, num_bytes: int) -> Iterator[Path]:
        """Return the path for a new file of about `num_bytes`, while no other process writes one of this name.

        Raises EngineError if the directory cannot hold it.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.directory / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EngineError(
                f"weights_offload_dir {self.directory} cannot be written to: {error.strerror}; set another directory"
            ) from error
        try:
            _lock(descriptor, self.directory)
            partial = self.directory / f"{name}.partial"
            partial.unlink(missing_ok=True)  # of a process that was killed while it wrote
            self._check_space(num_bytes)
            yield partial
        finally:
            os.close(descriptor)

    def publish(self, partial: Path, name: str) -> WeightsFile:
        """Give a written file its name, and open it. Raises EngineError."""
        try:
            os.replace(partial, self._path(name))
            return WeightsFile(self._path(name))
        except OSError as error:
            raise EngineError(f"weights_offload_dir {self.directory}: {error.strerror}") from error

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.weights"

    def _check_space(self, num_bytes: int) -> None:
        free_bytes = shutil.disk_usage(self.directory).free
        if free_bytes < num_bytes:
            raise EngineError(
                f"weights_offload_dir {self.directory} has {free_bytes / 1e9:.2f} GB free, but the weights take "
                f"{num_bytes / 1e9:.2f} GB: free some, or set a directory on another disk"
            )


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.info("waiting for another process that writes the same weights to %s", directory)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _verify(file: WeightsFile) -> None:
    """Compare all checksums, unless this machine has done so since the file was written. Raises EngineError."""
    known = FileHashes(CACHE_DIRECTORY)
    if known.find(file.path, file.state) == file.digest:
        return
    with ThreadPoolExecutor(THREADS, "weights-verify") as threads:
        for unit, digest in zip(file.layout.units, threads.map(file.digest_of, file.layout.units), strict=True):
            if digest != unit.digest:
                raise DamagedFile(f"the weights from byte {unit.offset} on have another checksum")
    known.store(file.path, file.state, file.digest)
