import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.checkpoint.tensor_index import read_tensors
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import InvalidCheckpoint
from baton.engine.kv import fingerprint
from baton.engine.kv.fingerprint import compatibility_fingerprint
from tests.checkpoints import weights_revision

BUNDLED = Path(__file__).parents[4] / "baton" / "bundled_model"
REVISION = "a revision"


def fingerprint_of(directory: Path) -> str:
    return compatibility_fingerprint(directory, read_model_config(directory), 16, weights_revision(directory))


def test_only_engines_with_compatible_blocks_share_a_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_model_config(BUNDLED)
    known = {compatibility_fingerprint(BUNDLED, config, 16, REVISION)}
    assert compatibility_fingerprint(BUNDLED, read_model_config(BUNDLED), 16, REVISION) in known
    assert compatibility_fingerprint(BUNDLED, config, 16, REVISION, kv_dtype=config.dtype) in known
    known.add(compatibility_fingerprint(BUNDLED, config, 16, "another"))
    known.add(compatibility_fingerprint(BUNDLED, config, 16, REVISION, kv_dtype="int8"))
    known.add(compatibility_fingerprint(BUNDLED, config, 16, REVISION, kv_dtype="int4"))
    known.add(compatibility_fingerprint(BUNDLED, config, 16, REVISION, kv_dtype="fp8"))
    known.add(compatibility_fingerprint(BUNDLED, config, 32, REVISION))
    known.add(compatibility_fingerprint(BUNDLED, config, 16, REVISION, num_parts=2))
    known.add(compatibility_fingerprint(BUNDLED, read_model_config(BUNDLED, "float32"), 16, REVISION))
    known.add(compatibility_fingerprint(BUNDLED, replace(config, rms_norm_eps=1e-5), 16, REVISION))
    assert all(each.startswith(f"{fingerprint.PROTOCOL_VERSION}-") for each in known)
    monkeypatch.setattr(fingerprint, "PROTOCOL_VERSION", fingerprint.PROTOCOL_VERSION + 1)
    known.add(compatibility_fingerprint(BUNDLED, config, 16, REVISION))
    assert len(known) == 10


def test_the_vocabulary_is_that_of_the_tokenizers_directory(tmp_path: Path) -> None:
    config, same = read_model_config(BUNDLED), shutil.copytree(BUNDLED, tmp_path / "same")
    other = shutil.copytree(BUNDLED, tmp_path / "other")
    (other / "tokenizer.json").write_text("{}")
    (other / "config.json").unlink()
    expected, copied, differs = (
        compatibility_fingerprint(BUNDLED, config, 16, REVISION, tokenizer) for tokenizer in (None, same, other)
    )
    assert expected == copied != differs


def test_one_changed_byte_of_any_tensor_changes_the_revision(tmp_path: Path) -> None:
    copy = shutil.copytree(BUNDLED, tmp_path / "copy", copy_function=shutil.copyfile)
    assert fingerprint_of(copy) == fingerprint_of(BUNDLED)
    tensors = read_tensors(copy).values()
    found = {weights_revision(copy)}
    with (copy / "model.safetensors").open("r+b", buffering=0) as file:
        for tensor in tensors:
            last = tensor.offset + tensor.num_bytes - 1
            [byte] = os.pread(file.fileno(), 1, last)
            os.pwrite(file.fileno(), bytes([byte ^ 1]), last)
            found.add(weights_revision(copy))
            os.pwrite(file.fileno(), bytes([byte]), last)
    assert len(found) == 1 + len(tensors)


def test_an_engine_has_the_fingerprint_of_its_files(tmp_path: Path) -> None:
    engine = Engine(EngineConfig(model=str(BUNDLED), kv_cache_memory_bytes=1 << 20))
    assert engine.fingerprint == fingerprint_of(BUNDLED)


def test_the_fingerprint_covers_the_vocabulary(tmp_path: Path) -> None:
    copy = shutil.copytree(BUNDLED, tmp_path / "copy")
    original = fingerprint_of(copy)
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": "{{ messages }}"}))
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    assert fingerprint_of(copy) == original  # the router applies it: token ids mean the same to all workers
    (copy / "tokenizer_config.json").write_text(json.dumps({**settings, "add_bos_token": True}))
    found = {original, fingerprint_of(copy)}
    (copy / "tokenizer_config.json").unlink()
    found.add(fingerprint_of(copy))
    text = (copy / "tokenizer.json").read_text()
    (copy / "tokenizer.json").write_text(text.replace('"the"', '"teh"', 1))
    found.add(fingerprint_of(copy))
    (copy / "added_tokens.json").write_text('{"<new>": 4095}')
    found.add(fingerprint_of(copy))
    assert len(found) == 5


def test_a_damaged_tokenizer_config_is_named(tmp_path: Path) -> None:
    copy = shutil.copytree(BUNDLED, tmp_path / "copy")
    (copy / "tokenizer_config.json").write_text("[]")
    with pytest.raises(InvalidCheckpoint, match=r"tokenizer_config\.json holds no JSON object"):
        fingerprint_of(copy)
