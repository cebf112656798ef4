"""The fingerprint of KV that quantizations of one model exchange."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from baton.engine.checkpoint.gguf.directory import checkpoint_directory
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import EngineConfig
from baton.engine.kv.fingerprint import compatibility_fingerprint, mixed_fingerprint
from baton.engine.kv.origin import KVOrigin, mixed_quantization, quantization_name
from baton.settings.values import OptionError
from tests.checkpoints import make_checkpoint
from tests.unit.engine.packed.gguf_writer import Type, write_gguf
from tests.unit.engine.packed.packed_writer import FORMATS, write_packed

BUNDLED = Path(__file__).parents[4] / "baton" / "bundled_model"


def test_quantizations_of_one_model_share_it(tmp_path: Path) -> None:
    stored = write_packed(make_checkpoint("qwen3", tmp_path / "source"), tmp_path, FORMATS["gptq"])
    configs = [read_model_config(each, "bfloat16") for each in (stored.packed, stored.exact)]
    assert configs[0] != configs[1]
    packed, exact = (
        mixed_fingerprint(directory, config, 16)
        for directory, config in zip((stored.packed, stored.exact), configs, strict=True)
    )
    assert packed == exact
    names = [quantization_name(EngineConfig(model="m", dtype="bfloat16"), config) for config in configs]
    assert names == ["gptq", "bf16"]
    assert quantization_name(EngineConfig(model="m", quantization="int8"), configs[0]) == "int8"


def test_a_gguf_file_shares_it_with_its_source(tmp_path: Path) -> None:
    source = make_checkpoint("qwen3", tmp_path / "source")
    converted = checkpoint_directory(write_gguf(source, tmp_path / "gguf", Type.Q8_0).file, tmp_path / "cache")
    (source / "tokenizer.json").write_bytes((converted / "tokenizer.json").read_bytes())
    found = [mixed_fingerprint(each, read_model_config(each, "bfloat16"), 16) for each in (source, converted)]
    assert found[0] == found[1]
    assert quantization_name(EngineConfig(model="m"), read_model_config(converted)) == "gguf"


def test_it_covers_what_the_kv_is(tmp_path: Path) -> None:
    config = read_model_config(BUNDLED)
    known = {
        mixed_fingerprint(BUNDLED, config, 16),
        compatibility_fingerprint(BUNDLED, config, 16, "a revision"),
        mixed_fingerprint(BUNDLED, config, 32),
        mixed_fingerprint(BUNDLED, config, 16, num_parts=2),
        mixed_fingerprint(BUNDLED, config, 16, kv_dtype="int8"),
        mixed_fingerprint(BUNDLED, replace(config, num_layers=config.num_layers + 1), 16),
        mixed_fingerprint(BUNDLED, replace(config, rope=replace(config.rope, theta=5.0)), 16),
    }
    assert len(known) == 7


def test_a_tokenizer_that_another_publisher_wrote_counts_by_its_ids(tmp_path: Path) -> None:
    config, copy = read_model_config(BUNDLED), shutil.copytree(BUNDLED, tmp_path / "copy")
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    (copy / "tokenizer.json").write_text(json.dumps({**tokenizer, "truncation": None}, indent=1))
    (copy / "tokenizer_config.json").unlink()
    assert mixed_fingerprint(copy, config, 16) == mixed_fingerprint(BUNDLED, config, 16)
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["the"], vocabulary["a"] = vocabulary["a"], vocabulary["the"]
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert mixed_fingerprint(copy, config, 16) != mixed_fingerprint(BUNDLED, config, 16)


def test_fp8_kv_whose_scales_are_the_checkpoints_is_refused() -> None:
    with pytest.raises(OptionError, match=r"allow_mixed_quantization: the scales of fp8 KV .* set another"):
        EngineConfig(model="m", kv_cache_dtype="fp8", allow_mixed_quantization=True)


def test_the_text_names_each_source_once() -> None:
    own = KVOrigin("bf16", "0")
    assert mixed_quantization([], own) == ""
    assert mixed_quantization([KVOrigin("gptq", "2"), KVOrigin("awq", "1"), KVOrigin("gptq", "3")], own) == (
        "awq,gptq->bf16"
    )
