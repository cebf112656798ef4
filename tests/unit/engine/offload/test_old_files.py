"""Weights files that nothing uses."""

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from baton.engine.offload.file_store import FileStore
from baton.engine.offload.old_files import StoredWeights, stored_weights
from baton.engine.offload.weights_file import WeightsFile
from tests.unit.engine.offload.file_rig import written

DIGEST = "0123456789abcdef" * 2


def names(directory: Path, is_in_use: bool) -> list[str]:
    return [
        each.path.name.replace(f"-{DIGEST}", "") for each in stored_weights(directory) if each.is_in_use is is_in_use
    ]


def listed(directory: Path, name: str) -> tuple[Path, StoredWeights]:
    path = directory / f"{name}-{DIGEST}.weights"
    path.write_bytes(b"weights")
    [stored] = stored_weights(directory)
    return path, stored


def test_files_that_processes_read_or_write_are_in_use(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for name in ("old", "left"):
        (tmp_path / f"{name}-{DIGEST}.weights").write_bytes(b"weights")
    os.utime(tmp_path / f"old-{DIGEST}.weights", (1000, 1000))
    (tmp_path / f"killed-{DIGEST}.partial").write_bytes(b"wei")  # the lock file is gone, too
    with (
        written(tmp_path / f"read-{DIGEST}.weights", 1) as rig,
        store.writing(f"written-{DIGEST}", 1) as partial,
    ):
        partial.write_bytes(b"wei")
        assert set(names(tmp_path, is_in_use=True)) == {"read.weights", "written.partial"}
        assert next(each.path.name for each in stored_weights(tmp_path)) == f"old-{DIGEST}.weights"
        assert sum(each.remove() for each in stored_weights(tmp_path)) == 3
        assert set(names(tmp_path, is_in_use=True)) == {"read.weights", "written.partial"}
        rig.reader.close()
    assert set(names(tmp_path, is_in_use=False)) == {"read.weights", "written.partial"}
    assert all(each.remove() for each in stored_weights(tmp_path))
    assert stored_weights(tmp_path) == []


def test_files_of_other_programs_are_not_listed(tmp_path: Path) -> None:
    """Other programs use these extensions, too, and the option may name any directory."""
    for name in ("yolov3.weights", "film.mkv.partial", f"{DIGEST}.weights", f"a-{DIGEST}.weights.txt", "other.txt"):
        (tmp_path / name).touch()
    (tmp_path / f"link-{DIGEST}.weights").symlink_to(tmp_path / "other.txt")
    (tmp_path / f"folder-{DIGEST}.weights").mkdir()
    os.mkfifo(tmp_path / f"pipe-{DIGEST}.weights")
    assert stored_weights(tmp_path) == []


def test_a_file_that_is_used_or_gone_meanwhile_is_left(tmp_path: Path) -> None:
    path, stored = listed(tmp_path, "a")
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not stored.remove()
    assert path.exists()
    path.unlink()
    assert not stored.remove()


def test_a_file_that_is_written_anew_is_left(tmp_path: Path) -> None:
    """The writer has given it its name, and does not read it yet."""
    path, stored = listed(tmp_path, "a")
    with FileStore(tmp_path).writing(path.stem, 1):
        assert not stored.remove()
        assert [each.is_in_use for each in stored_weights(tmp_path)] == [True]
    assert stored.remove()


@pytest.mark.parametrize("name", [f"a-{DIGEST}.weights", f"a-{DIGEST}.lock"])
def test_a_file_that_cannot_be_locked_is_in_use(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another user, in a directory that several share."""
    _, stored = listed(tmp_path, "a")
    (tmp_path / name).touch()
    open_file = os.open

    def refuse(path: Path, *args: int) -> int:
        if Path(path).name == name:
            raise PermissionError
        return open_file(path, *args)

    monkeypatch.setattr(os, "open", refuse)
    assert [each.is_in_use for each in stored_weights(tmp_path)] == [True]
    assert not stored.remove()


def test_a_file_that_is_opened_while_the_command_looks_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / f"a-{DIGEST}.weights"
    with written(path, 1) as rig:
        rig.reader.close()
        looking = os.open(path, os.O_RDONLY)
        fcntl.flock(looking, fcntl.LOCK_EX)

        def end() -> None:
            time.sleep(0.05)
            os.close(looking)

        ending = threading.Thread(target=end)
        ending.start()
        reader = WeightsFile(path)
        ending.join()
        assert names(tmp_path, is_in_use=True) == ["a.weights"]
        reader.close()
