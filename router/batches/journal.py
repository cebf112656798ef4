"""The journal of a batch: two append-only files, one line a result, which become its output and error file.

A line is complete or absent after a crash, and the requests without a line are run again. So each request has one
result.
"""

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from baton.router.batches.record import Outcome
from baton.router.files.disk import Disk, FolderLost, settled
from baton.router.files.durable import sync_folder

OUTPUT, ERRORS = "output", "errors"  # folders, each with a file `content`
CONTENT = "content"
KEPT = "kept"  # the content without repeated results, until it replaces it
NOT_RUN: Mapping[Outcome, str] = {
    "expired": "This request could not be executed before the completion window expired.",
    "cancelled": "The batch was cancelled before this request was executed.",
    "failed": "The batch failed before this request was executed.",
}


@dataclass(frozen=True, slots=True)
class LineResult:
    """The result of one request."""

    custom_id: str
    status: int | None = None  # HTTP's; None: the request was not run
    request_id: str = ""
    body: bytes = b""  # JSON
    error_code: str = ""  # if it was not run
    error_message: str = ""

    @property
    def is_success(self) -> bool:
        """Whether the result belongs into the output file."""
        return self.status == 200

    def encoded(self) -> bytes:
        """Return OpenAI's line."""
        response = error = None
        if self.status is not None:
            body = orjson.Fragment(self.body)
            response = {"status_code": self.status, "request_id": self.request_id, "body": body}
        else:
            error = {"code": self.error_code, "message": self.error_message}
        line_id = f"batch_req_{secrets.token_hex(12)}"
        line = {"id": line_id, "custom_id": self.custom_id, "response": response, "error": error}
        return orjson.dumps(line) + b"\n"


def not_run(custom_id: str, outcome: Outcome) -> LineResult:
    """Return the result of a request that a batch with this outcome did not run."""
    return LineResult(custom_id, error_code=f"batch_{outcome}", error_message=NOT_RUN[outcome])


@dataclass(slots=True)
class Progress:
    """The requests that have results."""

    succeeded: set[str] = field(default_factory=set)  # custom ids
    failed: set[str] = field(default_factory=set)

    def has(self, custom_id: str) -> bool:
        """Return whether the request has a result."""
        return custom_id in self.succeeded or custom_id in self.failed


class JournalPart:
    """One of the two files. Lines that arrive during a write are written and synced together after it."""

    def __init__(self, path: Path, disk: Disk, check_owner: Callable[[], None]) -> None:
        self._disk = disk
        self._path = path
        self._check_owner = check_owner
        self._fd: int | None = None  # opened by the first write
        self._waiting: list[bytes] = []
        self._current: asyncio.Task[None] | None = None  # the last write that has begun
        self._next: asyncio.Task[None] | None = None  # the write of the waiting lines

    async def append(self, line: bytes) -> None:
        """Write a line; it is on the disk afterwards. Raises FolderLost, and from then on always."""
        self._waiting.append(line)
        if self._next is None:
            self._next = asyncio.create_task(self._flush(self._current))
        await asyncio.shield(self._next)

    async def settle(self) -> None:
        """Wait for the writes, also of callers that were cancelled. Raises FolderLost if one failed."""
        writes = [each for each in (self._current, self._next) if each is not None]
        await settled(*writes)
        for each in writes:
            each.result()

    async def close(self) -> None:
        """Wait for the writes, also if the caller is cancelled, and close the file."""
        try:
            await settled(*filter(None, (self._current, self._next)))
        finally:
            if self._fd is not None:
                os.close(self._fd)

    async def _flush(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait([previous])
        self._current, self._next = self._next, None
        data, self._waiting = b"".join(self._waiting), []
        if previous is not None and previous.exception() is not None:
            raise FolderLost("an earlier line could not be written")  # a part of it may be in the file
        await self._disk.run(lambda: self._write(data))

    def _write(self, data: bytes) -> None:
        self._check_owner()
        if self._fd is None:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        os.fdatasync(self._fd)


class Journal:
    """Owns the two files of one batch while it runs."""

    def __init__(self, folder: Path, disk: Disk, check_owner: Callable[[], None]) -> None:
        """Read the results of an earlier owner; blocks. Incomplete last lines and repeated results are removed.

        `check_owner`: raises OSError if another router writes the journal now.
        """
        self.progress = Progress()
        self._paths = [folder / name / CONTENT for name in (OUTPUT, ERRORS)]
        self._disk = disk
        for path, ids in zip(self._paths, (self.progress.succeeded, self.progress.failed), strict=True):
            _recover(path, ids, self.progress)
        self.num_bytes = self._size()
        self._output, self._errors = (JournalPart(path, disk, check_owner) for path in self._paths)

    async def append(self, result: LineResult) -> None:
        """Write the result of a request that has none yet. Raises FolderLost."""
        assert not self.progress.has(result.custom_id), f"{result.custom_id} has a result already"
        ids = self.progress.succeeded if result.is_success else self.progress.failed
        ids.add(result.custom_id)
        line = result.encoded()
        self.num_bytes += len(line)
        await (self._output if result.is_success else self._errors).append(line)

    async def settle(self) -> None:
        """Wait for all writes. Raises FolderLost if the files do not have exactly the results of this journal."""
        await self._output.settle()
        await self._errors.settle()
        if await self._disk.run(self._size) != self.num_bytes:
            raise FolderLost("another router has written results of the batch")

    def _size(self) -> int:
        return sum(path.stat().st_size for path in self._paths if path.exists())

    async def close(self) -> None:
        """Wait for the writes, and close the files."""
        try:
            await self._output.close()
        finally:
            await self._errors.close()


def _recover(path: Path, ids: set[str], progress: Progress) -> None:
    """Add the custom ids of complete lines to `ids`, cut off what follows on them, and remove repeated results."""
    path.with_name(KEPT).unlink(missing_ok=True)
    if not path.exists():
        return
    repeats = list[int]()  # offsets of lines
    with path.open("r+b") as file:
        end = 0
        for line in file:
            try:
                custom_id = orjson.loads(line)["custom_id"] if line.endswith(b"\n") else None
            except (orjson.JSONDecodeError, TypeError, KeyError):
                custom_id = None
            if not isinstance(custom_id, str):
                break
            if progress.has(custom_id):
                repeats.append(end)
            else:
                ids.add(custom_id)
            end += len(line)
        file.truncate(end)
        os.fsync(file.fileno())
    if repeats:
        _remove_lines(path, set(repeats))


def _remove_lines(path: Path, offsets: set[int]) -> None:
    kept, offset = path.with_name(KEPT), 0
    with path.open("rb") as source, kept.open("wb") as target:
        for line in source:
            if offset not in offsets:
                target.write(line)
            offset += len(line)
        target.flush()
        os.fsync(target.fileno())
    kept.rename(path)
    sync_folder(path.parent)
