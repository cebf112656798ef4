"""The folder of files: what a crash leaves is deleted, and nothing else."""

import fcntl
import os
import time
from pathlib import Path

import pytest

from baton.router.config import RouterConfig
from baton.router.errors import FieldError
from baton.router.files.errors import UnknownId
from baton.router.files.folder import ABANDONED_S, FileFolder
from baton.router.files.quota import FolderLimits
from baton.router.files.record import TenantId
from baton.router.files.store import open_files
from baton.settings.values import OptionError

TENANT, OTHER = TenantId("a" * 32), TenantId("b" * 32)
LIMITS = FolderLimits(file_bytes=1000, tenant_bytes=2000, max_bytes=2500)


def contents(root: Path) -> list[Path]:
    return [path for path in root.rglob("content") if path.is_file()]


def age(path: Path) -> None:
    old_s = time.time() - ABANDONED_S - 1
    os.utime(path, (old_s, old_s))


def test_a_file_is_visible_once_it_is_whole(tmp_path: Path) -> None:
    folder = FileFolder(tmp_path, LIMITS)
    incoming = folder.begin(TENANT, 0)
    incoming.write(b"abc")
    assert folder.of_tenant(TENANT) == []
    record = incoming.commit("../../x", "batch")
    assert folder.of_tenant(TENANT) == [record]
    with folder.open(TENANT, record.id) as file:
        assert file.read() == b"abc"
    assert FileFolder(tmp_path, LIMITS).find(TENANT, record.id) == record
    for tenant, file_id in ((OTHER, record.id), (TENANT, "../files"), (TENANT, record.id + "/../" + record.id)):
        with pytest.raises(UnknownId):
            folder.find(tenant, file_id)
    folder.delete(TENANT, record.id)
    with pytest.raises(UnknownId):
        folder.find(TENANT, record.id)
    assert contents(tmp_path) == []


def test_files_in_progress_count_before_they_are_written(tmp_path: Path) -> None:
    folders = [FileFolder(tmp_path, LIMITS) for _ in range(2)]  # of two routers
    first, second = (folder.begin(TENANT, 1000) for folder in folders)
    for tenant, num_bytes in ((TENANT, 10), (OTHER, 1000)):
        with pytest.raises(FieldError, match="no room"):
            folders[0].begin(tenant, num_bytes)
    first.write(b"x" * 100)
    first.commit("a", "batch")
    third = folders[1].begin(TENANT, 700)
    second.abort()
    with pytest.raises(FieldError, match="over 1000 bytes"):
        third.write(b"x" * 1001)
    third.abort()
    assert len(contents(tmp_path)) == 1


def test_a_sweep_deletes_what_is_expired_or_abandoned(tmp_path: Path) -> None:
    folder = FileFolder(tmp_path, LIMITS)
    (tmp_path / "tenants" / "lost+found").touch()
    kept, expired = (folder.begin(TENANT, 10).commit(name, "batch", each) for name, each in (("a", 99), ("b", 0)))
    abandoned, live = folder.begin(OTHER, 10), folder.begin(OTHER, 10)
    for incoming in (abandoned, live):
        age(incoming._folder)
    abandoned._file.close()  # its router has ended
    folder.sweep(lambda tenant, file_id: False)
    assert folder.of_tenant(TENANT) == [kept]
    with pytest.raises(UnknownId):
        folder.find(TENANT, expired.id)
    live.write(b"x")
    record = live.commit("c", "batch")
    assert folder.of_tenant(OTHER) == [record]
    assert len(contents(tmp_path)) == 2


def test_locks_are_those_that_nfs_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def nfs_flock(fd: int, operation: int) -> None:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY and operation & fcntl.LOCK_EX:
            raise OSError(9, "Bad file descriptor")
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", nfs_flock)
    folder = FileFolder(tmp_path, LIMITS)
    abandoned = folder.begin(TENANT, 10)
    abandoned._file.close()
    age(abandoned._folder)
    folder.sweep(lambda tenant, file_id: False)
    assert contents(tmp_path) == []


def test_a_folder_without_working_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = RouterConfig(model="m", workers=("a:1",), files_dir=str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", lambda fd, operation: None)
    with pytest.raises(OptionError, match=r"files_dir: cannot use .*locks \(flock\) do not work"):
        open_files(options)
    assert list(tmp_path.iterdir()) == [tmp_path / "tenants"]
    monkeypatch.undo()
    files = open_files(options)
    assert files is not None
    files.disk.close()
