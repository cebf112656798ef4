"""Directories that stand for GGUF files in the cache."""

import os
from pathlib import Path

import pytest

from baton.engine.checkpoint.gguf.directory import checkpoint_directory
from tests.checkpoints import make_checkpoint
from tests.unit.engine.packed.gguf_writer import Type, write_gguf


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("source"))


def test_directories_of_files_that_are_gone_or_changed_are_removed(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    gone, changed, same, last = (
        write_gguf(source, tmp_path / name, Type.Q8_0).file for name in ("gone", "changed", "same", "last")
    )
    first = {file: checkpoint_directory(file, cache) for file in (gone, changed, same)}
    foreign = cache / "not-one-of-ours"
    foreign.mkdir()
    gone.unlink()
    newer = changed.stat().st_mtime_ns + 10**12
    os.utime(changed, ns=(newer, newer))
    kept = {first[same], foreign, checkpoint_directory(last, cache)}
    assert set(cache.iterdir()) == kept
    again = checkpoint_directory(changed, cache)  # younger than its link, but the directory is that of its state
    checkpoint_directory(same, cache, with_tokenizer=False)
    assert again in set(cache.iterdir())
