"""Bounds in bytes and number of a folder that several routers write to."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from baton.router.errors import FieldError
from baton.router.files.durable import locked

MAX_FILES = 4096  # of a tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLimits:
    """Bounds in bytes."""

    file_bytes: int  # of one file
    tenant_bytes: int
    max_bytes: int  # of all tenants together


def folder_bytes(path: Path) -> int:
    """Return the sum of the sizes of all files below a folder; files that vanish meanwhile do not count."""
    return sum(_sizes(path))


def _sizes(path: Path) -> Iterator[int]:
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _sizes(Path(entry.path))
                else:
                    yield _size(entry)
    except FileNotFoundError:
        return


def _size(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


class Quota:
    """Claims of bytes, one at a time among all routers: a file claims bytes when it grows, so that claims count."""

    def __init__(self, root: Path, limits: FolderLimits) -> None:
        self.limits = limits
        self._root = root

    def claim(self, tenant: Path, fd: int, num_bytes: int) -> None:
        """Grow an open file of the tenant to `num_bytes`. Raises FieldError if there is no room for them."""
        with locked(self._root / "quota.lock"):
            more = num_bytes - os.fstat(fd).st_size
            if more > self.num_left(tenant):
                text = f"the server has no room for {num_bytes} bytes: delete files, or send a smaller one"
                raise FieldError("file", text, "storage_limit_exceeded")
            if sum(1 for _ in (tenant / "files").iterdir()) >= MAX_FILES:
                raise FieldError("file", f"there are {MAX_FILES} files, the maximum: delete some", "too_many_files")
            os.ftruncate(fd, num_bytes)

    def num_left(self, tenant: Path) -> int:
        """Return the bytes that the tenant may still store."""
        limits = self.limits
        return min(limits.tenant_bytes - folder_bytes(tenant), limits.max_bytes - folder_bytes(self._root))
