"""Memory that a packed checkpoint takes while it is loaded: little more than its files."""

import subprocess
import sys
from pathlib import Path

import pytest

from baton.engine.checkpoint.gguf.directory import checkpoint_directory
from tests.checkpoints import make_checkpoint
from tests.unit.engine.packed import compressed_writer
from tests.unit.engine.packed.gguf_writer import Type, write_gguf
from tests.unit.engine.packed.packed_writer import FORMATS, write_packed
from tests.unit.engine.test_load_memory import PROGRAM, SIZES, repeat_layer

NUM_LAYERS = 40
MOST = 1.2  # peak over the files' bytes


def peak_over_files(small: Path, large: Path) -> float:
    """Load both; return the peak of the second over its files' bytes."""
    command = [sys.executable, "-c", PROGRAM, str(small), str(large), ""]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    before, highest = map(int, done.stdout.split())
    files = sum(file.stat().st_size for pattern in ("*.safetensors", "*.gguf") for file in large.glob(pattern))
    assert files > 100e6
    return (highest - before) * 1024 / files


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("fmt", ["gptq", "awq", "w4a16-asym"])
def test_no_full_precision_copy_is_made(fmt: str, tmp_path: Path) -> None:
    formats = FORMATS | compressed_writer.FORMATS
    models = []
    for name, sizes in (("small", {}), ("large", SIZES | {"vocab_size": 320})):
        source = make_checkpoint("llama2", tmp_path / name / "source", **sizes)
        models.append(write_packed(source, tmp_path / name, formats[fmt]).packed)
    repeat_layer(models[1], NUM_LAYERS)
    assert peak_over_files(*models) < MOST


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_K])
def test_a_gguf_file_stays_packed(kind: Type, tmp_path: Path) -> None:
    """The embedding, a third of the weights, stays packed too; the output layer shares it."""
    models = []
    for name, layers in (("small", 1), ("large", 16 if kind == Type.Q8_0 else 28)):
        sizes = SIZES | {"head_dim": 64, "vocab_size": 40_000, "tie_word_embeddings": True}
        source = make_checkpoint("llama2", tmp_path / name / "source", **sizes)
        repeat_layer(source, layers)
        written = write_gguf(source, tmp_path / name / "gguf", kind)
        models.append(checkpoint_directory(written.file, tmp_path / "cache"))
    assert peak_over_files(*models) < MOST
