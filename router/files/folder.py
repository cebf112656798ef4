"""The folder of all tenants' files.

    DIR/quota.lock                           bytes by tenant; locked while they change
    DIR/tenants/TENANT/files/FILE_ID/        `content` and `file.json`
    DIR/tenants/TENANT/incoming/RANDOM/      a file that is being received; its `content` is locked meanwhile
    DIR/tenants/TENANT/batches/              see router/batches/folder.py

A file becomes visible and vanishes with the rename of its folder, so a crash leaves no partial file. Names are random
ids of ours: nothing that a client sends is a part of a path, except ids, which are checked.
"""

import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from baton.router.errors import FieldError
from baton.router.files.durable import check_locks, sync_folder, try_lock, write_file
from baton.router.files.errors import UnknownId
from baton.router.files.quota import CONTENT, FolderLimits, Quota
from baton.router.files.record import FileRecord, TenantId, decode

FILE_ID = re.compile(r"file-[0-9a-f]{32}")
RECORD = "file.json"
GROWTH_BYTES = 16 << 20  # claimed at once by a file of unknown size
MAX_FILENAME_CHARS = 255


def new_file_id() -> str:
    """Return a random id."""
    return f"file-{secrets.token_hex(16)}"


class IncomingFile:
    """A file that is being received. Owns its temporary folder until `commit` or `abort`."""

    def __init__(self, tenant: Path, quota: Quota, num_bytes: int) -> None:
        """`num_bytes`: an upper bound of its size if it is known, otherwise 0. Raises FieldError if it has no room."""
        self._tenant, self._quota = tenant, quota
        self._claimed = self.num_bytes = 0
        self._folder = tenant / "incoming" / secrets.token_hex(16)
        self._folder.mkdir()
        self._file = (self._folder / CONTENT).open("xb", buffering=0)
        try:
            try_lock(self._file.fileno())
            self._claim(min(num_bytes, quota.limits.file_bytes))
        except BaseException:
            self.abort()
            raise

    def write(self, data: bytes) -> None:
        """Append data. Raises FieldError if there is no room for it."""
        if self.num_bytes + len(data) > self._quota.limits.file_bytes:
            raise FieldError("file", f"the file has over {self._quota.limits.file_bytes} bytes, the maximum")
        if self.num_bytes + len(data) > self._claimed:
            self._claim(max(self.num_bytes + len(data), self._claimed + GROWTH_BYTES))
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self.num_bytes += len(data)

    def commit(self, filename: str, purpose: str, expires_s: int | None = None) -> FileRecord:
        """Make the file visible. `expires_s`: seconds from now after which it is deleted."""
        now_s = int(time.time())
        record = FileRecord(
            id=new_file_id(),
            filename=filename[:MAX_FILENAME_CHARS],
            purpose=purpose,
            num_bytes=self.num_bytes,
            created_at=now_s,
            expires_at=None if expires_s is None else now_s + expires_s,
        )
        self._quota.shrink(self._tenant, self._file.fileno(), self.num_bytes)
        os.fsync(self._file.fileno())
        write_file(self._folder / RECORD, record.encoded())
        self._quota.move(self._folder, self._tenant / "files" / record.id)
        self._file.close()
        return record

    def abort(self) -> None:
        """Delete what was received. No-op after `commit`."""
        self._file.close()
        self._quota.remove(self._tenant, self._folder)

    def _claim(self, num_bytes: int) -> None:
        limit = self._quota.limits.file_bytes
        self._quota.claim(self._tenant, self._file.fileno(), min(num_bytes, limit))
        self._claimed = min(num_bytes, limit)


class FileFolder:
    """The files of all tenants. Its methods block, and raise OSError."""

    def __init__(self, root: Path, limits: FolderLimits) -> None:
        """Create the folder. Raises OSError, also if its file system has no working locks."""
        self.limits = limits
        self.tenants = root / "tenants"
        self.quota = Quota(root, limits)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.tenants.mkdir(mode=0o700, exist_ok=True)
        sync_folder(root)
        check_locks(root)

    def tenant(self, tenant: TenantId) -> Path:
        """Return a tenant's folder, which is created."""
        path = self.tenants / tenant
        for name in ("files", "incoming"):
            (path / name).mkdir(parents=True, exist_ok=True)
        return path

    def begin(self, tenant: TenantId, num_bytes: int) -> IncomingFile:
        """Return a new file; see `IncomingFile`."""
        return IncomingFile(self.tenant(tenant), self.quota, num_bytes)

    def find(self, tenant: TenantId, file_id: str) -> FileRecord:
        """Return a file's record. Raises UnknownId."""
        path = self._path(tenant, file_id)
        try:
            record = decode((path / RECORD).read_bytes())
        except (FileNotFoundError, ValueError):
            raise _unknown(file_id) from None
        if record.is_expired:
            raise _unknown(file_id)
        return record

    def open(self, tenant: TenantId, file_id: str) -> BinaryIO:
        """Return the open content. Raises UnknownId."""
        path = self._path(tenant, file_id) / CONTENT
        try:
            return path.open("rb")
        except FileNotFoundError:
            raise _unknown(file_id) from None

    def of_tenant(self, tenant: TenantId) -> list[FileRecord]:
        """Return all records of a tenant, the oldest first."""
        records = []
        for path in (self.tenant(tenant) / "files").iterdir():
            with suppress(UnknownId):
                records.append(self.find(tenant, path.name))
        return sorted(records, key=lambda record: (record.created_at, record.id))

    def delete(self, tenant: TenantId, file_id: str) -> None:
        """Delete a file. Raises UnknownId."""
        doomed = self.tenant(tenant) / "incoming" / secrets.token_hex(16)
        try:
            self.quota.move(self._path(tenant, file_id), doomed)
        except FileNotFoundError:
            raise _unknown(file_id) from None
        self.quota.remove(self.tenant(tenant), doomed)

    def adopt(self, tenant: TenantId, folder: Path, record: FileRecord) -> None:
        """Make a folder with `content` visible as a file. No-op if it already is one."""
        target = self.tenant(tenant) / "files" / record.id
        if not target.exists():
            write_file(folder / RECORD, record.encoded())
            self.quota.move(folder, target)

    def sweep(self, is_used: Callable[[TenantId, str], bool]) -> None:
        """Delete expired files, and what routers that ended left of uploads and deletions.

        `is_used`: whether a tenant's file is still needed. It is then kept, although it counts as deleted.
        """
        for tenant in self.tenants.iterdir():
            with suppress(FileNotFoundError, NotADirectoryError):
                for path in (tenant / "files").iterdir():
                    self._delete_expired(TenantId(tenant.name), path, is_used)
                for path in (tenant / "incoming").iterdir():
                    if _is_abandoned(path):
                        self.quota.remove(tenant, path)

    def _delete_expired(self, tenant: TenantId, path: Path, is_used: Callable[[TenantId, str], bool]) -> None:
        with suppress(FileNotFoundError, ValueError, UnknownId):
            if decode((path / RECORD).read_bytes()).is_expired and not is_used(tenant, path.name):
                self.delete(tenant, path.name)

    def _path(self, tenant: TenantId, file_id: str) -> Path:
        if not FILE_ID.fullmatch(file_id):
            raise _unknown(file_id)
        return self.tenants / tenant / "files" / file_id


ABANDONED_S = 60.0  # age from which a folder without a lock counts as abandoned


def _is_abandoned(folder: Path) -> bool:
    try:
        if time.time() - folder.stat().st_mtime < ABANDONED_S:
            return False
        with (folder / CONTENT).open("r+b") as file:
            return try_lock(file.fileno())
    except FileNotFoundError:
        return folder.exists()


def _unknown(file_id: str) -> UnknownId:
    return UnknownId(f"No such File object: {file_id[:128]}")
