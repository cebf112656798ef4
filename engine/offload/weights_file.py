"""A file of weights as they are computed with: units, then their layout, then a trailer with its place and digest."""

import errno
import fcntl
import logging
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from xxhash import xxh3_128

from baton.engine.checkpoint.file_hashes import FileState
from baton.engine.errors import EngineError
from baton.engine.offload.layout import CHUNK_BYTES, Layout, Unit

log = logging.getLogger(__name__)

MAGIC = b"baton-weights-1\n"
OFFSET_BYTES = 16
NUM_LOCKS, LOCK_S = 100, 0.01  # attempts, and seconds between them
CLOSED = -1  # descriptor of a closed file, with which every read fails
TRAILER_BYTES = len(MAGIC) + 2 * OFFSET_BYTES + xxh3_128().digest_size


class DamagedFile(EngineError):
    """The file is not a complete weights file."""


@dataclass(frozen=True, slots=True)
class Trailer:
    """Place of the layout in a file."""

    offset: int
    num_bytes: int
    digest: bytes

    def encoded(self) -> bytes:
        """Return the trailer's bytes."""
        numbers = (each.to_bytes(OFFSET_BYTES, "little") for each in (self.offset, self.num_bytes))
        return b"".join((MAGIC, *numbers, self.digest))

    @classmethod
    def parse(cls, text: bytes) -> "Trailer":
        """Parse `encoded`. Raises DamagedFile."""
        if len(text) != TRAILER_BYTES or not text.startswith(MAGIC):
            raise DamagedFile("it has no trailer")
        rest = text[len(MAGIC) :]
        first, second = rest[:OFFSET_BYTES], rest[OFFSET_BYTES : 2 * OFFSET_BYTES]
        return cls(int.from_bytes(first, "little"), int.from_bytes(second, "little"), rest[2 * OFFSET_BYTES :])


class WeightsFile:
    """An open weights file. It is read without the page cache if the file system can, since each step reads it anew."""

    def __init__(self, path: Path) -> None:
        """Open a file and read its layout. Raises DamagedFile, or OSError if there is none."""
        self.path = path
        self._descriptor = _open(path)
        try:
            _lock_shared(self._descriptor)
            self.state = FileState.of_stat(os.fstat(self._descriptor))
            self.layout, self.digest = self._read_layout()
        except BaseException:
            self.close()
            raise

    def read_into(self, memory: memoryview, offset: int) -> None:
        """Fill memory with the bytes from an offset on. Safe on any thread. Raises EngineError."""
        try:
            while memory:
                count = os.preadv(self._descriptor, [memory], offset)
                if not count:
                    raise EngineError(f"{self.path} was cut short while it was in use: restart to lay it out again")
                memory, offset = memory[count:], offset + count
        except OSError as error:
            raise EngineError(f"{self.path} cannot be read: {error.strerror}") from error

    def digest_of(self, unit: Unit) -> str:
        """Return the checksum of a unit as it is stored. Safe on any thread. Raises EngineError."""
        digest, buffer = xxh3_128(), mmap.mmap(-1, CHUNK_BYTES)
        with memoryview(buffer) as whole:
            for offset, num_bytes in unit.chunks:
                self.read_into(whole[:num_bytes], offset)
                digest.update(whole[:num_bytes])
        return digest.hexdigest()

    def check_unchanged(self) -> None:
        """Raise EngineError if the file was written to after it was opened; it may be removed or replaced."""
        now = FileState.of_stat(os.fstat(self._descriptor))
        if (now.num_bytes, now.modified_ns) != (self.state.num_bytes, self.state.modified_ns):
            raise EngineError(f"{self.path} was written to while it was in use: restart to lay it out again")

    @contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        """Close the file if the block raises an exception."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; no effect if it is closed."""
        descriptor, self._descriptor = self._descriptor, CLOSED
        if descriptor != CLOSED:
            os.close(descriptor)

    def _read_layout(self) -> tuple[Layout, str]:
        with self.path.open("rb") as file:
            size = self.state.num_bytes
            file.seek(max(0, size - TRAILER_BYTES))
            trailer = Trailer.parse(file.read())
            if trailer.offset + trailer.num_bytes + TRAILER_BYTES != size:
                raise DamagedFile("its size is not the one in its trailer")
            file.seek(trailer.offset)
            text = file.read(trailer.num_bytes)
        if xxh3_128(text).digest() != trailer.digest:
            raise DamagedFile("its layout has another checksum")
        try:
            layout = Layout.parse(text)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFile(f"its layout cannot be parsed: {error}") from error
        if layout.num_bytes > trailer.offset:
            raise DamagedFile("its layout reaches past its end")
        return layout, trailer.digest.hex()


def _lock_shared(descriptor: int) -> None:
    """Lock a file for as long as it is open: `baton cache weights` then leaves it. Without locks, return at once."""
    for _ in range(NUM_LOCKS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # just then, the command looks whether the file is in use
            time.sleep(LOCK_S)
        except OSError:
            return
        else:
            return


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:  # of file systems in memory
            raise
        log.info("%s is read through the page cache: its file system has no direct reads", path)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
