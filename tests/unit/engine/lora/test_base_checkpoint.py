"""The model's files are read again for DoRA and for copies of base weights."""

import os
from pathlib import Path
from shutil import copytree

import pytest

from baton.engine.checkpoint import weights
from baton.engine.errors import InvalidAdapter
from tests.adapters import make_adapter
from tests.unit.engine.lora.lora_rig import lora_engine


def test_an_adapter_reads_the_index_of_the_tensors_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a mixture of experts takes a fraction of a second, in which other threads hardly run."""
    engine = lora_engine(model)
    adapter = make_adapter(model, tmp_path / "a", use_dora=True)
    read_tensors, directories = weights.read_tensors, list[Path]()

    def counted(directory: Path) -> object:
        directories.append(directory)
        return read_tensors(directory)

    monkeypatch.setattr(weights, "read_tensors", counted)
    engine.adapters.load("a", adapter)
    engine.adapters.load("the same contents", adapter)
    assert directories == [model]


def test_files_of_the_model_that_have_changed_are_not_used(model: Path, tmp_path: Path) -> None:
    """Their norms would be those of other weights than the loaded ones."""
    own = copytree(model, tmp_path / "model")
    engine = lora_engine(own)
    dora = make_adapter(own, tmp_path / "dora", ["q_proj"], use_dora=True)
    status = (own / "model.safetensors").stat()
    os.utime(own / "model.safetensors", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(InvalidAdapter, match=r"model\.safetensors has changed since the model was loaded; restart"):
        engine.adapters.load("dora", dora)
    (own / "model.safetensors").unlink()
    with pytest.raises(InvalidAdapter, match=r"which cannot be read: .*model\.safetensors does not exist"):
        engine.adapters.load("dora", dora)
    engine.adapters.load("plain", make_adapter(model, tmp_path / "plain", ["q_proj"]))
