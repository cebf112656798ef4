"""Memory that a checkpoint takes while it is loaded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import make_checkpoint

SIZES = {
    "hidden_size": 768,
    "intermediate_size": 2304,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "num_hidden_layers": 1,  # see `repeat_layer`
}
NUM_LAYERS = 20
# Prints the process's memory before the load and its peak, in KiB, after loading a small model of the same kind.
PROGRAM = """
import sys
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine

def memory(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name + ":"))

def load(model):
    return Engine(EngineConfig(model=model, quantization=sys.argv[3] or None, kv_cache_memory_bytes=4 << 20))

small = load(sys.argv[1])
before = memory("VmRSS")
large = load(sys.argv[2])
print(before, memory("VmHWM"))
"""


def repeat_layer(directory: Path, count: int) -> None:
    """Give a checkpoint of one layer `count` copies of it, which takes less time than as many random layers."""
    path = directory / "model.safetensors"
    tensors, first = load_file(path), "model.layers.0."
    for name in [name for name in tensors if name.startswith(first)]:
        suffix = name.removeprefix(first)
        tensors |= {f"model.layers.{layer}.{suffix}": tensors[name].clone() for layer in range(1, count)}
    save_file(tensors, path, {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": count}))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama2", tmp_path_factory.mktemp("small"), dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a few hundred megabytes."""
    directory = make_checkpoint("llama2", tmp_path_factory.mktemp("large"), dtype=torch.bfloat16, **SIZES)
    repeat_layer(directory, NUM_LAYERS)
    return directory


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(("quantization", "most"), [("", 1.3), ("int8", 1.1)])
@pytest.mark.slow
def test_no_second_copy_of_the_weights_is_made(small: Path, large: Path, quantization: str, most: float) -> None:
    """Neither as pages of the mapped files, nor as weights in another layout."""
    if quantization and not torch.cpu._is_vnni_supported():
        pytest.skip("products in int8 need VNNI")
    command = [sys.executable, "-c", PROGRAM, str(small), str(large), quantization]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    before, highest = map(int, done.stdout.split())
    weights = sum(file.stat().st_size for file in large.glob("*.safetensors"))
    assert weights > 200e6
    assert (highest - before) * 1024 < most * weights
