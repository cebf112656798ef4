"""The directory in host memory that the workers of one namespace share."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from baton.kvtransfer.store import shared_memory_directory as shared_memory
from baton.kvtransfer.store.shared_memory_directory import shared_memory_directory
from baton.kvtransfer.store.store import StoreUnavailable
from tests.unit.kvtransfer.store.store_rig import open_descriptors

HOLDER = """
import sys
from pathlib import Path
from baton.kvtransfer.store import shared_memory_directory as shared_memory
from baton.kvtransfer.store.shared_memory_directory import shared_memory_directory
held = shared_memory_directory(sys.argv[1], 1, Path(sys.argv[2]))
print(held.path, flush=True)
sys.stdin.readline()
held.close()
"""
REPEATED = """
import sys
from pathlib import Path
from baton.kvtransfer.store import shared_memory_directory as shared_memory
from baton.kvtransfer.store.shared_memory_directory import shared_memory_directory
for _ in range(100):
    held = shared_memory_directory("a", 1, Path(sys.argv[1]))
    (held.path / "block").touch()
    assert (held.path / ".held").exists()
    held.close()
"""
REPOSITORY = Path(__file__).parents[4]


@contextmanager
def holder(namespace: str, parent: Path) -> Iterator[Popen[str]]:
    """Another process that holds a directory; it closes it at the end."""
    arguments = [sys.executable, "-c", HOLDER, namespace, str(parent)]
    with Popen(arguments, stdin=PIPE, stdout=PIPE, text=True, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(str(parent))
        yield process


def names(parent: Path) -> list[str]:
    return sorted(path.name.removeprefix(f"baton-kv-{os.geteuid()}-") for path in parent.iterdir())


def test_it_is_private_and_deleted_by_its_last_user(tmp_path: Path) -> None:
    before = open_descriptors()
    first, second = shared_memory_directory("a", 1, tmp_path), shared_memory_directory("a", 1, tmp_path)
    assert first.path == second.path == tmp_path / f"baton-kv-{os.geteuid()}-a"
    assert first.path.stat().st_mode & 0o777 == 0o700
    (first.path / "block").touch()
    first.close()
    assert (second.path / "block").exists()
    second.close()
    second.close()
    assert names(tmp_path) == []
    assert open_descriptors() == before


def test_the_last_process_deletes_it(tmp_path: Path) -> None:
    with holder("a", tmp_path):
        shared_memory_directory("a", 1, tmp_path).close()
        assert names(tmp_path) == ["a"]
    assert names(tmp_path) == []


def test_a_start_deletes_what_killed_processes_left_except_its_own(tmp_path: Path) -> None:
    with holder("held", tmp_path):
        with holder("a", tmp_path) as first, holder("b", tmp_path) as second:
            for namespace, process in (("a", first), ("b", second)):
                (tmp_path / f"baton-kv-{os.geteuid()}-{namespace}" / "block").touch()
                process.kill()
        (tmp_path / "other").mkdir()
        before = open_descriptors()
        own = shared_memory_directory("a", 1, tmp_path)
        assert names(tmp_path) == ["a", "held", "other"]
        assert (own.path / "block").exists()
        own.close()
        assert open_descriptors() == before


def test_remains_of_an_interrupted_deletion_are_deleted(tmp_path: Path) -> None:
    (tmp_path / f"baton-kv-{os.geteuid()}-.0123" / "folder").mkdir(parents=True, mode=0o700)
    (tmp_path / f"baton-kv-{os.geteuid()}-.0123").chmod(0o700)
    shared_memory_directory("a", 1, tmp_path).close()
    assert names(tmp_path) == []


def test_a_directory_is_renamed_before_its_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that starts meanwhile must not find half of it; a later one deletes what a killed one has left."""
    held = shared_memory_directory("a", 1, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda path: None)
        held.close()
    assert not held.path.exists()
    [remains] = names(tmp_path)
    assert remains.startswith(".")
    shared_memory_directory("b", 1, tmp_path).close()
    assert names(tmp_path) == []


def test_a_directory_that_was_created_again_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holder("a", tmp_path) as process:
        process.kill()
    path, try_lock = tmp_path / f"baton-kv-{os.geteuid()}-a", shared_memory.try_lock

    def replace_and_lock(fd: int) -> bool:
        if not (tmp_path / "old").exists():
            path.rename(tmp_path / "old")
            path.mkdir(0o700)
            (path / ".held").touch()
        return try_lock(fd)

    monkeypatch.setattr(shared_memory, "try_lock", replace_and_lock)
    shared_memory_directory("b", 1, tmp_path)
    assert (path / ".held").exists()


def test_a_directory_that_was_deleted_and_created_again_is_left_to_its_users(tmp_path: Path) -> None:
    first = shared_memory_directory("a", 1, tmp_path)
    shutil.rmtree(first.path)
    second = shared_memory_directory("a", 1, tmp_path)
    first.close()
    assert (second.path / ".held").exists()
    second.close()
    assert names(tmp_path) == []


def test_starts_and_ends_at_once_agree(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", REPEATED, str(tmp_path)]
    processes = [Popen(arguments, cwd=REPOSITORY) for _ in range(3)]
    for process in processes:
        process.wait()
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert names(tmp_path) == []


def test_too_little_memory_is_an_error_that_says_how_to_get_more(tmp_path: Path) -> None:
    space = os.statvfs(tmp_path)
    capacity = space.f_blocks * space.f_frsize + 1
    with pytest.raises(StoreUnavailable, match=r"has \d+ MiB, fewer than the \d+ MiB.* --shm-size") as caught:
        shared_memory_directory("a", capacity, tmp_path)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


def test_without_the_parent_it_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="missing: No such file or directory; blocks in host memory need it"):
        shared_memory_directory("a", 1, tmp_path / "missing")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of another user")
def test_the_name_may_be_taken_by_another_user(tmp_path: Path) -> None:
    path = tmp_path / "baton-kv-0-a"
    path.mkdir()
    os.chown(path, 65534, 65534)
    before = open_descriptors()
    with pytest.raises(StoreUnavailable, match="it belongs to the user 65534"):
        shared_memory_directory("a", 1, tmp_path)
    shared_memory_directory("b", 1, tmp_path).close()
    assert names(tmp_path) == ["a"]
    assert open_descriptors() == before


def test_it_is_in_host_memory() -> None:
    """Without a call: in /dev/shm, that would delete what other tests have left."""
    assert shared_memory_directory.__defaults__ == (Path("/dev/shm"),)
