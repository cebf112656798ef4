"""The folder of all tenants' batches, next to their files.

    DIR/tenants/TENANT/batches/active/BATCH_ID/   a batch that has not ended
        batch.json                                its record, replaced by its owner alone
        cancel                                    exists once a client has cancelled it
        lock                                      locked by the router that owns it, and names it by a random token
        output/content, errors/content            its journal, which become files
    DIR/tenants/TENANT/batches/ended/BATCH_ID/    batch.json, and cancel

The kernel releases a lock when its process ends, on this machine or, over NFS 4, on another. Another router then takes
the batch over. A machine that the file server lost does not notice that, so owners compare the token before they write.
"""

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from baton.router.batches.record import BatchRecord, decode
from baton.router.errors import FieldError, Overloaded
from baton.router.files.durable import move, sync_folder, try_lock, write_file
from baton.router.files.errors import UnknownId
from baton.router.files.folder import FileFolder
from baton.router.files.record import TenantId

BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")
MAX_ACTIVE, MAX_ENDED = 64, 1024  # batches of a tenant
ACTIVE, ENDED = "active", "ended"
RECORD, CANCEL, LOCK = "batch.json", "cancel", "lock"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A batch that has not ended and may have no owner."""

    tenant: TenantId
    batch_id: str
    created_at: int
    must_end: bool  # it has been cancelled, or has expired


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as other requests see it."""

    record: BatchRecord
    cancelling_at: int | None

    @property
    def id(self) -> str:
        """Id of the batch."""
        return self.record.id

    def body(self) -> dict[str, object]:
        """Return OpenAI's batch object."""
        return self.record.body(self.cancelling_at)


class OwnedBatch:
    """A batch that this router runs. Owns its lock until `release`, and alone writes its record and journal."""

    def __init__(self, tenant: TenantId, folder: Path, lock: int) -> None:
        """Name this owner in the lock. Raises ValueError if the record is damaged."""
        self._token = secrets.token_hex(16).encode()
        os.pwrite(lock, self._token, 0)
        os.fsync(lock)
        self.tenant = tenant
        self.folder = folder
        self._lock = lock
        self.record = decode((folder / RECORD).read_bytes())

    def check_owner(self) -> None:
        """Raise OSError if another router owns the batch: file servers release the locks of machines that they lost."""
        if (self.folder / LOCK).read_bytes() != self._token:
            raise OSError(f"another router has taken {self.folder.name} over")

    def save(self, *, durable: bool = True) -> None:
        """Store the record. Raises OSError, also if another router owns the batch."""
        self.check_owner()
        write_file(self.folder / RECORD, self.record.encoded(), durable=durable)

    def is_cancelled(self) -> bool:
        """Return whether a client has cancelled the batch."""
        return (self.folder / CANCEL).exists()

    def end(self) -> None:
        """Store the final record, and move the batch to those that have ended."""
        self.save()
        for name in ("output", "errors"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        move(self.folder, self.folder.parents[1] / ENDED / self.folder.name)
        _forget_oldest(self.folder.parents[1] / ENDED)

    def release(self) -> None:
        """Give up the ownership. No thread may use the batch any more."""
        os.close(self._lock)


class BatchFolder:
    """The batches of all tenants. Its methods block, and raise OSError."""

    def __init__(self, files: FileFolder) -> None:
        self._files = files

    def create(self, tenant: TenantId, record: BatchRecord) -> None:
        """Store a new batch. Raises Overloaded if the tenant has too many that have not ended.

        Raises FieldError if the tenant has no room for results.
        """
        base = self._base(tenant)
        self._files.quota.check_room(self._files.tenant(tenant))
        if sum(1 for _ in (base / ACTIVE).iterdir()) >= MAX_ACTIVE:
            raise Overloaded(f"{MAX_ACTIVE} batches have not ended, the maximum", 60)
        incoming = self._files.tenant(tenant) / "incoming" / secrets.token_hex(16)
        incoming.mkdir()
        for name in ("output", "errors"):
            (incoming / name).mkdir()
        (incoming / LOCK).touch()
        write_file(incoming / RECORD, record.encoded())
        sync_folder(incoming)
        move(incoming, base / ACTIVE / record.id)

    def find(self, tenant: TenantId, batch_id: str) -> StoredBatch:
        """Return a batch. Raises UnknownId."""
        if BATCH_ID.fullmatch(batch_id):
            for name in (ACTIVE, ENDED, ACTIVE):  # a batch may be moved in between
                with suppress(FileNotFoundError, ValueError):
                    return _read(self._files.tenants / tenant / "batches" / name / batch_id)
        raise UnknownId(f"No batch found with id '{batch_id[:128]}'.")

    def of_tenant(self, tenant: TenantId) -> list[StoredBatch]:
        """Return all batches of a tenant, the oldest first."""
        base = self._base(tenant)
        found: dict[str, StoredBatch] = {}
        for name in (ACTIVE, ENDED):
            for path in (base / name).iterdir():
                with suppress(FileNotFoundError, ValueError):
                    found[path.name] = _read(path)
        return sorted(found.values(), key=lambda each: (each.record.created_at, each.record.id))

    def user_of(self, tenant: TenantId, file_id: str) -> str | None:
        """Return the id of a batch that has not ended and has this input; None if there is none."""
        for path in (self._base(tenant) / ACTIVE).iterdir():
            with suppress(FileNotFoundError, ValueError):
                if _read(path).record.input_file_id == file_id:
                    return path.name
        return None

    def sweep(self) -> None:
        """Delete expired files, except the inputs of batches that have not ended."""
        self._files.sweep(lambda tenant, file_id: self.user_of(tenant, file_id) is not None)

    def cancel(self, tenant: TenantId, batch_id: str) -> StoredBatch:
        """Ask the owner of a batch to cancel it. Raises UnknownId, or FieldError if it has ended."""
        batch = self.find(tenant, batch_id)
        try:
            (self._base(tenant) / ACTIVE / batch_id / CANCEL).touch()
        except FileNotFoundError:
            status = self.find(tenant, batch_id).record.status
            raise FieldError("batch_id", f"{batch_id} cannot be cancelled: its status is '{status}'") from None
        return self.find(tenant, batch.record.id)

    def candidates(self, known: Set[str]) -> list[Candidate]:
        """Return the batches that have not ended, the oldest first, without those whose ids are in `known`."""
        found: list[Candidate] = []
        for tenant in self._files.tenants.iterdir():
            with suppress(FileNotFoundError, NotADirectoryError):
                for path in (tenant / "batches" / ACTIVE).iterdir():
                    if path.name not in known:
                        found.extend(_candidate(TenantId(tenant.name), path))
        return sorted(found, key=lambda each: (each.created_at, each.batch_id))

    def own(self, tenant: TenantId, batch_id: str) -> OwnedBatch | None:
        """Become the owner of a batch; None if it has one, or has ended.

        Raises ValueError if its record is damaged.
        """
        folder = self._files.tenants / tenant / "batches" / ACTIVE / batch_id
        try:
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            if try_lock(lock) and os.path.samestat(os.fstat(lock), (folder / LOCK).stat()):
                return OwnedBatch(tenant, folder, lock)
        except FileNotFoundError:
            pass  # it has ended meanwhile
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        return None

    def _base(self, tenant: TenantId) -> Path:
        base = self._files.tenant(tenant) / "batches"
        for name in (ACTIVE, ENDED):
            (base / name).mkdir(parents=True, exist_ok=True)
        return base


def _candidate(tenant: TenantId, folder: Path) -> Iterator[Candidate]:
    with suppress(FileNotFoundError, ValueError):  # it has just ended, or is damaged
        batch = _read(folder)
        must_end = batch.cancelling_at is not None or time.time() >= batch.record.expires_at
        yield Candidate(tenant, folder.name, batch.record.created_at, must_end)


def _read(folder: Path) -> StoredBatch:
    record = decode((folder / RECORD).read_bytes())
    try:
        cancelling_at = int((folder / CANCEL).stat().st_mtime)
    except FileNotFoundError:
        cancelling_at = None
    return StoredBatch(record, cancelling_at)


def _forget_oldest(ended: Path) -> None:
    """Delete the batches that ended first, beyond the maximum."""
    with os.scandir(ended) as entries:
        by_age = sorted(entries, key=lambda entry: entry.stat().st_mtime)
    for entry in by_age[: max(0, len(by_age) - MAX_ENDED)]:
        shutil.rmtree(entry.path, ignore_errors=True)
