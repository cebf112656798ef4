"""Directories that stand for GGUF files in the cache."""

import os
import time
from pathlib import Path

import pytest

from baton.engine.checkpoint.gguf.directory import KEPT_S, checkpoint_directory
from tests.checkpoints import make_checkpoint
from tests.unit.engine.packed.gguf_writer import Type, write_gguf


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("source"))


def forget(*directories: Path) -> None:
    """Make the directories look as if none had been asked for in a while."""
    for directory in directories:
        os.utime(directory, (time.time() - 2 * KEPT_S,) * 2)


def touch(file: Path) -> None:
    newer = file.stat().st_mtime_ns + 10**12
    os.utime(file, ns=(newer, newer))


def test_directories_of_files_that_are_gone_or_changed_are_removed(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    gone, changed, same, last = (
        write_gguf(source, tmp_path / name, Type.Q8_0).file for name in ("gone", "changed", "same", "last")
    )
    first = {file: checkpoint_directory(file, cache) for file in (gone, changed, same)}
    foreign = cache / "not-one-of-ours"
    foreign.mkdir()
    gone.unlink()
    touch(changed)
    forget(*first.values(), foreign)
    kept = {first[same], foreign, checkpoint_directory(last, cache)}
    assert set(cache.iterdir()) == kept
    again = checkpoint_directory(changed, cache)  # younger than its link, but the directory is that of its state
    forget(again)
    checkpoint_directory(same, cache, with_tokenizer=False)
    assert again in set(cache.iterdir())


def test_a_directory_that_was_asked_for_lately_is_kept(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    made, again, last = (write_gguf(source, tmp_path / name, Type.Q8_0).file for name in ("made", "again", "last"))
    used = {checkpoint_directory(file, cache) for file in (made, again)}
    forget(checkpoint_directory(again, cache))
    checkpoint_directory(again, cache)
    for file in (made, again):
        file.unlink()
    assert used < {checkpoint_directory(last, cache), *cache.iterdir()}


def test_files_that_cannot_be_examined_count_as_unchanged(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    file, last = (write_gguf(source, tmp_path / name, Type.Q8_0).file for name in ("first", "last"))
    directory = checkpoint_directory(file, cache)
    link = directory / file.name
    link.unlink()
    link.symlink_to(last / "in-a-file.gguf")  # NotADirectoryError
    forget(directory)
    checkpoint_directory(last, cache)
    assert directory in set(cache.iterdir())
