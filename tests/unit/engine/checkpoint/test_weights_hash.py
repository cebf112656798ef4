"""Hashes of weights: what they depend on, what is cached, and when the cache is not trusted."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from baton.engine.checkpoint import file_hashes
from baton.engine.checkpoint.file_hashes import FileHashes, FileState
from baton.engine.checkpoint.weights_hash import WeightsHash
from baton.engine.errors import EngineEnded, InvalidCheckpoint
from tests.checkpoints import make_checkpoint, weights_revision

HASH = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("sharded"), max_shard_size="200KB")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(1000))
    return path


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat files as settled at once."""
    monkeypatch.setattr(file_hashes, "SETTLED_NS", 0)


def test_the_revision_depends_only_on_the_bytes(sharded: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sharded, tmp_path / "copy", copy_function=shutil.copyfile)
    assert weights_revision(copy) == weights_revision(sharded)
    assert len(list(copy.glob("*.safetensors"))) > 2
    found = {weights_revision(sharded)}
    for path in copy.glob("*.safetensors"):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        found.add(weights_revision(copy))
    assert len(found) == 1 + len(list(copy.glob("*.safetensors")))


def test_a_file_that_changes_while_it_is_loaded_is_refused(sharded: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sharded, tmp_path / "copy")
    path = next(copy.glob("*.safetensors"))
    with WeightsHash(copy) as weights_hash:
        weights_hash.revision()
        path.write_bytes(path.read_bytes())
        with pytest.raises(InvalidCheckpoint, match=f"{path.name} changed while it was read"):
            weights_hash.revision()


def test_the_threads_end_with_the_context(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(1 << 40)  # no reader reaches its end
    before = threading.active_count()
    with WeightsHash(tmp_path, tmp_path / "cache") as weights_hash:
        pass
    assert threading.active_count() == before
    with pytest.raises((EngineEnded, CancelledError)):
        weights_hash.revision()
    assert not (tmp_path / "cache").exists()


def test_a_hash_is_cached_across_processes(file: Path, tmp_path: Path, settled: None) -> None:
    state = FileState.of(file)
    known = FileHashes(tmp_path / "new" / "cache", min_bytes=1)
    assert known.find(file, state) is None
    known.store(file, state, HASH)
    again = FileHashes(tmp_path / "new" / "cache", min_bytes=1)
    assert again.find(file, FileState.of(file)) == HASH
    link = tmp_path / "link"
    link.symlink_to(file)
    assert again.find(link, FileState.of(link)) == HASH
    [entry] = (tmp_path / "new" / "cache").iterdir()  # nothing else is left there
    assert entry.suffix == ".json"


def rewrite(path: Path) -> None:
    """Write other bytes and keep the time stamp."""
    status = path.stat()
    path.write_bytes(bytes(999) + b"x")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path: Path) -> None:
    """Put another file with the same time stamp under the same name."""
    status = path.stat()
    other = path.with_name("other")
    other.write_bytes(bytes(999) + b"x")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(path)


@pytest.mark.parametrize("change", [rewrite, replace, lambda path: path.write_bytes(bytes(1001))])
def test_a_hash_of_another_file_state_is_not_trusted(
    file: Path, tmp_path: Path, settled: None, change: Callable[[Path], None]
) -> None:
    known = FileHashes(tmp_path / "cache", min_bytes=1)
    known.store(file, FileState.of(file), HASH)
    change(file)
    assert known.find(file, FileState.of(file)) is None


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"{}",
        b'{"hash": 3}',
        b"[" * 100_000,
        None,
    ],
)
def test_a_damaged_entry_is_ignored(file: Path, tmp_path: Path, settled: None, damage: bytes | None) -> None:
    known = FileHashes(tmp_path / "cache", min_bytes=1)
    state = FileState.of(file)
    known.store(file, state, HASH)
    [entry] = (tmp_path / "cache").iterdir()
    entry.write_bytes(entry.read_bytes()[:-10] if damage is None else damage)
    assert known.find(file, state) is None
    known.store(file, state, HASH)
    assert known.find(file, state) == HASH


@pytest.mark.parametrize(("key", "value"), [("version", 0), ("hash", "short"), ("path", "/else"), ("inode", 1)])
def test_an_entry_with_any_mismatch_is_ignored(
    file: Path, tmp_path: Path, settled: None, key: str, value: object
) -> None:
    known = FileHashes(tmp_path / "cache", min_bytes=1)
    state = FileState.of(file)
    known.store(file, state, HASH)
    [entry] = (tmp_path / "cache").iterdir()
    entry.write_text(json.dumps({**json.loads(entry.read_text()), key: value}))
    assert known.find(file, state) is None


def test_hashes_of_small_and_new_files_are_not_cached(file: Path, tmp_path: Path) -> None:
    FileHashes(tmp_path / "cache", min_bytes=1).store(file, FileState.of(file), HASH)  # it was written just now
    assert not (tmp_path / "cache").exists()
    FileHashes(tmp_path / "cache", min_bytes=1001).store(file, FileState.of(file), HASH)
    assert not (tmp_path / "cache").exists()


def test_an_unwritable_cache_is_skipped(file: Path, tmp_path: Path, settled: None) -> None:
    (tmp_path / "cache").write_text("a file")
    known = FileHashes(tmp_path / "cache", min_bytes=1)
    known.store(file, FileState.of(file), HASH)
    assert known.find(file, FileState.of(file)) is None


def test_concurrent_writers_leave_one_complete_entry(file: Path, tmp_path: Path, settled: None) -> None:
    state, found = FileState.of(file), set[str | None]()

    def work() -> None:
        known = FileHashes(tmp_path / "cache", min_bytes=1)
        for _ in range(50):
            known.store(file, state, HASH)
            found.add(known.find(file, state))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {HASH}
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_files_with_cached_hashes_are_not_read_again(
    sharded: Path, tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileHashes.__init__, "__defaults__", (1,))
    with WeightsHash(sharded, tmp_path / "cache") as weights_hash:
        revision = weights_hash.revision()

    def refuse(self: WeightsHash, path: Path) -> str:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr(WeightsHash, "_read", refuse)
    with WeightsHash(sharded, tmp_path / "cache") as weights_hash:
        assert weights_hash.revision() == revision
