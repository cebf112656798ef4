"""Digests of vocabularies, which a router compares with its own."""

import json
from pathlib import Path
from typing import Any

from baton.engine.checkpoint.vocabulary import vocabulary_digest
from baton.engine.config import EngineConfig
from baton.engine.execution.loaded_model import load, zeros
from tests.checkpoints import make_checkpoint


def write(directory: Path, vocab: dict[str, int] | list[list[Any]], added: list[dict[str, Any]], **others: Any) -> Path:
    directory.mkdir(exist_ok=True)
    described = {"model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": added, **others}
    (directory / "tokenizer.json").write_text(json.dumps(described))
    return directory


def test_a_digest_is_that_of_tokens_and_ids(tmp_path: Path) -> None:
    end = {"id": 2, "content": "<end>", "special": True}
    first = vocabulary_digest(write(tmp_path / "a", {"a": 0, "b": 1}, [end]))
    assert first == vocabulary_digest(write(tmp_path / "b", {"b": 1, "a": 0}, [end], normalizer=None))
    assert first != vocabulary_digest(write(tmp_path / "c", {"a": 1, "b": 0}, [end]))
    assert first != vocabulary_digest(write(tmp_path / "d", {"a": 0, "b": 1}, [{**end, "content": "<stop>"}]))


def test_the_same_tokens_in_another_format_have_the_same_digest(tmp_path: Path) -> None:
    vocab, end = {"a": 0, "b": 1}, {"id": 2, "content": "<end>"}
    first = vocabulary_digest(write(tmp_path / "first", vocab, [end]))
    padded = {**vocab, "<end>": 2, "[PAD3]": 3, "[PAD4]": 4}  # as in a GGUF file
    assert vocabulary_digest(write(tmp_path / "padded", padded, [])) == first
    assert vocabulary_digest(write(tmp_path / "named", {**vocab, "[PAD4]": 3}, [end])) != first
    for score in (-1.5, -1.25):
        pieces = [["a", score], ["b", -2.0]]
        assert vocabulary_digest(write(tmp_path / str(score), pieces, [end])) == first


def test_without_a_tokenizer_there_is_none(tmp_path: Path) -> None:
    assert vocabulary_digest(tmp_path) == ""


def test_a_worker_reports_the_vocabulary_of_its_tokenizer(tmp_path: Path) -> None:
    model, other = make_checkpoint("llama3", tmp_path / "model"), write(tmp_path / "other", {"a": 0}, [])
    config = EngineConfig(model=str(model), tokenizer=str(other), kv_cache_memory_bytes=1 << 20)
    assert load(config, zeros).vocabulary == vocabulary_digest(other)
