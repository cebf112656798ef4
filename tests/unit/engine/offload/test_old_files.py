"""Weights files that nothing uses."""

import fcntl
import os
from pathlib import Path

from baton.engine.offload.file_store import FileStore
from baton.engine.offload.old_files import stored_weights
from tests.unit.engine.offload.file_rig import written


def names(directory: Path, is_in_use: bool) -> list[str]:
    return [each.path.name for each in stored_weights(directory) if each.is_in_use is is_in_use]


def test_files_that_processes_read_or_write_are_in_use(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for name in ("old", "left"):
        (tmp_path / f"{name}.weights").write_bytes(b"weights")
    os.utime(tmp_path / "old.weights", (1000, 1000))
    (tmp_path / "killed.partial").write_bytes(b"wei")  # the lock file is gone, too
    (tmp_path / "other.txt").touch()
    (tmp_path / "link.weights").symlink_to(tmp_path / "other.txt")
    with written(tmp_path / "read.weights", 1) as rig, store.writing("written", 1) as partial:
        partial.write_bytes(b"wei")
        assert set(names(tmp_path, is_in_use=True)) == {"read.weights", "written.partial"}
        assert next(each.path.name for each in stored_weights(tmp_path)) == "old.weights"
        assert sum(each.remove() for each in stored_weights(tmp_path)) == 3
        assert set(names(tmp_path, is_in_use=True)) == {"read.weights", "written.partial"}
        rig.reader.close()
    assert set(names(tmp_path, is_in_use=False)) == {"read.weights", "written.partial"}
    assert all(each.remove() for each in stored_weights(tmp_path))
    assert stored_weights(tmp_path) == []


def test_a_file_that_is_used_or_gone_meanwhile_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.weights"
    path.write_bytes(b"weights")
    [listed] = stored_weights(tmp_path)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not listed.remove()
    assert path.exists()
    path.unlink()
    assert not listed.remove()
