"""Draft models that do not fit the model for which they draft."""

import json
import shutil
from pathlib import Path

import pytest

from baton.cli.options.model_source import BUNDLED
from baton.engine.checkpoint.model_config import model_config_of
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import EngineError
from baton.engine.speculation.draft_checkpoint import DraftCheckpoint
from benchmarks.first_layers import with_first_layers
from tests.checkpoints import make_checkpoint
from tests.draft_checkpoints import copy_of, with_config, with_vocabulary
from tests.unit.engine.speculation.draft_rig import option


def read(draft: Path, **options: object) -> DraftCheckpoint | None:
    engine = EngineConfig(model=str(BUNDLED), speculative_config=option(draft), **options)  # type: ignore[arg-type]
    return DraftCheckpoint.of(engine, model_config_of(engine))


def other_tokens(directory: Path) -> Path:
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    tokenizer["added_tokens"][0]["content"] += "?"
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


def without_tokenizer(directory: Path) -> Path:
    (directory / "tokenizer.json").unlink()
    return directory


def test_a_model_with_fewer_layers_fits(tmp_path: Path) -> None:
    draft = read(with_first_layers(BUNDLED, tmp_path / "draft", 1), max_model_len=300)
    assert draft is not None
    assert draft.max_model_len == 300
    assert draft.config.num_layers == 1
    assert draft.block_bytes == 16 * draft.token_bytes == 16 * 2 * 2 * 64 * 2
    assert read(without_tokenizer(copy_of(BUNDLED, tmp_path / "bare"))) is not None
    assert DraftCheckpoint.of(EngineConfig(model=str(BUNDLED)), draft.config) is None


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    message = (
        r"speculative_config: the draft model \S+ has another vocabulary \(4\d+ tokens\) than \S+ \(4096\); name a"
    )
    with pytest.raises(EngineError, match=message):
        read(other_tokens(copy_of(BUNDLED, tmp_path / "tokens")))
    with pytest.raises(EngineError, match=message):
        read(with_vocabulary(without_tokenizer(copy_of(BUNDLED, tmp_path / "size")), 4000))
    padded = with_vocabulary(copy_of(BUNDLED, tmp_path / "padded"), 4095)
    assert read(padded) is not None, "only padding is missing"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["XForCausalLM"]}, "the draft model .*: .*XForCausalLM"),
        ({"hidden_size": 0}, "the draft model .*hidden_size"),
    ],
)
def test_a_config_that_cannot_be_served_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=f"speculative_config: {message}"):
        read(with_config(copy_of(BUNDLED, tmp_path / "draft"), **changes))


def test_recurrent_layers_are_refused(tmp_path: Path) -> None:
    draft = make_checkpoint("qwen3-next", tmp_path / "draft")
    shutil.copy(BUNDLED / "tokenizer.json", draft)
    with pytest.raises(EngineError, match=r"the draft model \S+ has recurrent layers, whose state cannot take back"):
        read(draft)


def test_missing_weights_and_too_little_memory_are_errors_of_the_engine(tmp_path: Path) -> None:
    draft = with_first_layers(BUNDLED, tmp_path / "draft", 1)
    plain = EngineConfig(model=str(BUNDLED), kv_cache_memory_bytes=1 << 16, num_threads=1)
    with pytest.raises(EngineError, match=r"must be at least 81920: 2 blocks of 40960 bytes"):
        Engine(EngineConfig(model=str(BUNDLED), kv_cache_memory_bytes=1 << 16, speculative_config=option(draft)))
    assert len(Engine(plain).pool) == 2
    with_config(draft, num_hidden_layers=2)
    with pytest.raises(EngineError, match=r"model\.layers\.1"):
        Engine(EngineConfig(model=str(BUNDLED), kv_cache_memory_bytes=1 << 20, speculative_config=option(draft)))
