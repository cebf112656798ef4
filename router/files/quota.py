"""Bounds in bytes and number of a folder that several routers write to."""

import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import TypeAdapter

from baton.router.errors import FieldError
from baton.router.files.durable import locked, move

CONTENT = "content"  # name of the files that count
RECOUNT_S = 60.0  # least time between two counts because there seems to be no room
MAX_FILES = 4096  # of a tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLimits:
    """Bounds in bytes."""

    file_bytes: int  # of one file
    tenant_bytes: int
    max_bytes: int  # of all tenants together


def content_bytes(path: Path) -> int:
    """Return the bytes of all contents below a folder; files that vanish meanwhile do not count."""
    return sum(_sizes(path))


def _sizes(path: Path) -> Iterator[int]:
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _sizes(Path(entry.path))
                elif entry.name == CONTENT:
                    yield _size(entry)
    except (FileNotFoundError, NotADirectoryError):
        return


def _size(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


class Quota:
    """Count of the bytes of all contents, by tenant, which the routers of a folder share.

    It is stored in `quota.lock`, which is locked while contents change. Bytes that a file claims count before they are
    written. Each router counts the contents themselves at its first access, and when a claim has no room: what ended
    unexpectedly may have left the count too high or too low.
    """

    def __init__(self, root: Path, limits: FolderLimits) -> None:
        self.limits = limits
        self._path = root / "quota.lock"
        self._tenants = root / "tenants"
        self._counted_s = -math.inf
        self._must_count = True

    def claim(self, tenant: Path, fd: int, num_bytes: int) -> None:
        """Grow an open file of the tenant to `num_bytes`. Raises FieldError if there is no room for them."""
        with self._locked() as used:
            more = num_bytes - os.fstat(fd).st_size
            self._check_room(used, tenant, more, 0)
            os.ftruncate(fd, num_bytes)
            used[tenant.name] += more

    def check_room(self, tenant: Path) -> None:
        """Raise FieldError if the tenant has no room for a byte and two more files, the results of a batch."""
        with self._locked() as used:
            self._check_room(used, tenant, 1, 2)

    def _check_room(self, used: Counter[str], tenant: Path, num_bytes: int, num_files: int) -> None:
        if not self._has_room(used, tenant, num_bytes):
            text = f"the server has no room for {num_bytes} more bytes: delete files, or send a smaller one"
            raise FieldError("file", text, "storage_limit_exceeded")
        if sum(len(os.listdir(tenant / name)) for name in ("files", "incoming")) + num_files > MAX_FILES:
            raise FieldError("file", f"there are {MAX_FILES} files, the maximum: delete some", "too_many_files")

    def shrink(self, tenant: Path, fd: int, num_bytes: int) -> None:
        """Cut an open file of the tenant to `num_bytes`, and give back the rest of its claim."""
        with self._locked() as used:
            used[tenant.name] -= os.fstat(fd).st_size - num_bytes
            os.ftruncate(fd, num_bytes)

    def move(self, source: Path, target: Path) -> None:
        """Move a folder of a tenant durably. A count meanwhile could miss it. Raises OSError."""
        with self._locked():
            move(source, target)

    def remove(self, tenant: Path, folder: Path) -> None:
        """Delete a folder of the tenant as far as possible; no-op if it does not exist."""
        with self._locked() as used:
            num_bytes = content_bytes(folder)
            shutil.rmtree(folder, ignore_errors=True)
            used[tenant.name] -= num_bytes - content_bytes(folder)

    def add(self, tenant: Path, num_bytes: int) -> int:
        """Count bytes that were written without a claim. Return how many are left for the tenant, or below 0."""
        with self._locked() as used:
            used[tenant.name] += num_bytes
            self._has_room(used, tenant, 1)
            return self._num_left(used, tenant)

    def recount(self) -> None:
        """Count the contents at the next access."""
        self._must_count = True

    @contextmanager
    def _locked(self) -> Iterator[Counter[str]]:
        """Lock and yield the bytes by tenant; store their changes."""
        with locked(self._path) as fd:
            stored = os.pread(fd, os.fstat(fd).st_size, 0)
            used = _decode(stored)
            if self._must_count or used is None:
                used = Counter[str]()
                self._count(used)
            try:
                yield used
            finally:
                changed = orjson.dumps(+used)
                if changed != stored:
                    os.pwrite(fd, changed, 0)
                    os.ftruncate(fd, len(changed))

    def _count(self, used: Counter[str]) -> None:
        """Replace the bytes by those of the contents."""
        self._must_count = False
        try:
            counted = {each.name: content_bytes(each) for each in self._tenants.iterdir()}
        except BaseException:
            self._must_count = True
            raise
        used.clear()
        used.update(counted)
        self._counted_s = time.monotonic()

    def _has_room(self, used: Counter[str], tenant: Path, num_bytes: int) -> bool:
        """Return whether the tenant may store more bytes. Counts the contents first if it seems not."""
        if num_bytes > self._num_left(used, tenant) and time.monotonic() >= self._counted_s + RECOUNT_S:
            self._count(used)
        return num_bytes <= self._num_left(used, tenant)

    def _num_left(self, used: Counter[str], tenant: Path) -> int:
        """Return the bytes that the tenant may still store; may be negative."""
        limits = self.limits
        return min(limits.tenant_bytes - used[tenant.name], limits.max_bytes - used.total())


_STORED = TypeAdapter(dict[str, int])


def _decode(stored: bytes) -> Counter[str] | None:
    """Return the stored bytes by tenant; None if they are damaged, as after a crash."""
    try:
        return Counter(_STORED.validate_json(stored))
    except ValueError:
        return None
