"""GGUF files as the model of a worker and of a router."""

from dataclasses import replace
from pathlib import Path

import pytest

from baton.engine.config import EngineConfig
from baton.router.model_options import directory_name
from baton.settings.values import OptionError
from baton.worker.command import with_directory
from baton.worker.config import WorkerConfig
from tests.unit.engine.packed.gguf_writer import Type, write_gguf
from tests.unit.engine.perplexity import BUNDLED


def worker(model: Path) -> WorkerConfig:
    return WorkerConfig(role="decode", worker_id="decode-0", engine=EngineConfig(model=str(model), device="cpu"))


def test_a_worker_serves_the_directory_that_stands_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_ASSETS_CACHE", str(tmp_path / "assets"))
    written = write_gguf(BUNDLED, tmp_path / "gguf", Type.Q8_0)
    config = with_directory(worker(written.file))
    directory = Path(config.engine.model)
    assert directory.is_relative_to(tmp_path / "assets")
    assert {path.name for path in directory.iterdir()} >= {"config.json", "tokenizer.json", written.file.name}
    assert config.served_model_name == "tiny-Q8_0"
    assert with_directory(worker(written.file)).engine.model == config.engine.model  # it is made once
    named = with_directory(replace(worker(written.file), served_model_name="mine"))
    assert named.served_model_name == "mine"
    assert with_directory(worker(BUNDLED)) == worker(BUNDLED)


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(OptionError, match=r"^model: \S+a\.gguf has GGUF version 0, which is not"):
        with_directory(worker(file))


def test_a_tokenizers_directory_without_one_is_refused(tmp_path: Path) -> None:
    config = worker(BUNDLED)
    for tokenizer in (BUNDLED, tmp_path):
        given = replace(config, engine=replace(config.engine, tokenizer=str(tokenizer)))
        if tokenizer == BUNDLED:
            assert with_directory(given) == given
            continue
        with pytest.raises(OptionError, match=f"^tokenizer: {tmp_path} is not a directory with a tokenizer.json$"):
            with_directory(given)


def test_a_models_name_is_its_files_without_the_ending() -> None:
    assert directory_name("/models/Qwen3-0.6B-Q8_0.gguf") == "Qwen3-0.6B-Q8_0"
    assert directory_name("/models/big-00001-of-00003.gguf") == "big"
    assert directory_name("/models/Qwen3-0.6B/") == "Qwen3-0.6B"
