"""The count of bytes: exact among routers, without a walk over all files."""

import os
import random
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from baton.router.errors import FieldError
from baton.router.files import quota
from baton.router.files.errors import UnknownId
from baton.router.files.folder import FileFolder
from baton.router.files.quota import FolderLimits, content_bytes
from baton.router.files.record import TenantId

TENANT, OTHER = TenantId("a" * 32), TenantId("b" * 32)
LIMITS = FolderLimits(file_bytes=1000, tenant_bytes=2000, max_bytes=2500)


def num_left(folder: FileFolder, tenant: TenantId) -> int:
    return folder.quota.add(folder.tenant(tenant), 0)


def test_claims_do_not_walk_over_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = FileFolder(tmp_path, FolderLimits(file_bytes=1000, tenant_bytes=100_000, max_bytes=100_000))
    for number in range(20):
        folder.begin(OTHER, 10).commit(f"{number}", "batch")
    scanned: list[str] = []
    scandir = os.scandir

    def scan(path: Any = ".") -> Any:
        scanned.append(str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    folder.begin(TENANT, 100).commit("a", "batch")
    assert [path for path in scanned if OTHER in path] == []


def test_concurrent_changes_of_two_routers_are_counted_exactly(tmp_path: Path) -> None:
    folders = [FileFolder(tmp_path, LIMITS) for _ in range(2)]
    failures: list[BaseException] = []

    def change(folder: FileFolder, seed: int) -> None:
        rng = random.Random(seed)
        tenant = rng.choice((TENANT, OTHER))
        try:
            for _ in range(15):
                try:
                    incoming = folder.begin(tenant, rng.choice((0, 500, 1000)))
                except FieldError:
                    continue
                with suppress(FieldError):
                    incoming.write(b"x" * rng.randrange(1000))
                if rng.random() < 0.3:
                    incoming.abort()
                    continue
                record = incoming.commit("a", "batch")
                folder.quota.recount()
                assert num_left(folder, tenant) >= 0
                if rng.random() < 0.8:
                    folder.delete(tenant, record.id)
        except (AssertionError, OSError, UnknownId) as error:
            failures.append(error)

    threads = [threading.Thread(target=change, args=(folders[seed % 2], seed)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for tenant in (TENANT, OTHER):
        used = content_bytes(tmp_path / "tenants" / tenant)
        left = min(LIMITS.tenant_bytes - used, LIMITS.max_bytes - content_bytes(tmp_path))
        assert num_left(folders[0], tenant) == num_left(folders[1], tenant) == left
        assert num_left(FileFolder(tmp_path, LIMITS), tenant) == left


def test_files_in_progress_count_for_the_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "MAX_FILES", 2)
    folder = FileFolder(tmp_path, LIMITS)
    uploads = [folder.begin(TENANT, 1) for _ in range(2)]
    with pytest.raises(FieldError, match="there are 2 files"):
        folder.begin(TENANT, 1)
    for each in uploads:
        each.commit("a", "batch")
    with pytest.raises(FieldError, match="there are 2 files"):
        folder.begin(TENANT, 1)
    assert len(folder.of_tenant(TENANT)) == 2


def test_a_damaged_or_outdated_count_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = FileFolder(tmp_path, LIMITS)
    folder.begin(TENANT, 1000).commit("a", "batch")
    for damaged in (b"", b'{"a', b"[1, 2]", b'{"a": "b"}'):
        (tmp_path / "quota.lock").write_bytes(damaged)
        assert num_left(folder, TENANT) == 2000
        claimed = folder.begin(TENANT, 900)
        assert num_left(folder, TENANT) == 1100
        claimed.abort()
    folder.quota.add(folder.tenant(TENANT), 1500)  # by a router that ended before the bytes were written
    with pytest.raises(FieldError, match="no room"):
        folder.begin(TENANT, 900)
    monkeypatch.setattr(quota, "RECOUNT_S", 0.0)
    folder.begin(TENANT, 900).abort()
    assert folder.quota.add(folder.tenant(TENANT), 900) == 1100
    assert folder.quota.add(folder.tenant(TENANT), 1500) == 2000  # the results of a batch that were counted twice


def test_files_are_not_moved_while_they_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = (FileFolder(tmp_path, LIMITS) for _ in range(2))
    incoming = folder.begin(TENANT, 0)
    incoming.write(b"x" * 1000)
    record = incoming.commit("a", "batch")
    deleting = threading.Thread(target=folder.delete, args=(TENANT, record.id))
    found: list[str] = []

    def count_slowly(path: Path) -> int:
        monkeypatch.undo()
        deleting.start()
        deleting.join(0.2)
        found.extend(os.listdir(folder.tenant(TENANT) / "files"))
        return content_bytes(path)

    monkeypatch.setattr(quota, "content_bytes", count_slowly)
    assert num_left(other, TENANT) == 1000
    assert found == [record.id]
    deleting.join()
    assert num_left(other, TENANT) == 2000
