"""Tokens and log-probabilities are the same with weights in a file as in memory, bit for bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baton.engine.checkpoint.gguf.directory import checkpoint_directory
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import EngineError
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.unit.engine.offload.offload_rig import config_of, outputs, requests, running
from tests.unit.engine.packed.gguf_writer import Type, write_gguf
from tests.unit.engine.packed.packed_writer import FORMATS, write_packed

LAYERS = {"num_hidden_layers": 6}
WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 6}


def write_k_quants(directory: Path) -> Path:
    """Write a GGUF file with weights of two types in a fused projection."""
    source = make_checkpoint("llama2", directory / "source", **WIDE)
    written = write_gguf(source, directory / "gguf", Type.Q4_K, others={"down": Type.Q6_K, "ffn_up": Type.Q8_0})
    return checkpoint_directory(written.file, directory / "cache")


CASES: list[Any] = [
    ("llama3", None, LAYERS),
    ("llama3", "int8", LAYERS),
    ("qwen3", "int4", LAYERS),
    slow_case("gemma2", None, LAYERS),
    slow_case("gemma4", None, {}),
    ("qwen3-next", None, {"num_hidden_layers": 8}),
    slow_case("nemotron-h", None, {}),
    slow_case("falcon-h1", None, LAYERS),
    ("qwen3-moe", None, LAYERS),
    slow_case("qwen3-moe", "int8", LAYERS),
    slow_case("deepseek-v3", "int4", LAYERS),
    slow_case("gpt-oss", None, LAYERS),
    slow_case("gemma4-moe", None, {}),
]


def least_memory(config: EngineConfig) -> int:
    """Return the smallest limit, with which only what must stay in memory does."""
    with pytest.raises(EngineError, match="weights_memory_bytes is 1, but must be at least") as caught:
        Engine(replace(config, weights_memory_bytes=1))
    return int(str(caught.value).split("at least ")[1].split(":")[0])


def assert_equal_outputs(model: Path, directory: Path, **options: Any) -> None:
    with running(config_of(model, **options)) as engine:
        expected = outputs(engine, requests())
    offloaded = {"weights_offload": "disk", "weights_offload_dir": str(directory), **options}
    least = least_memory(config_of(model, **offloaded))
    with running(config_of(model, weights_memory_bytes=least, **offloaded)) as engine:
        assert outputs(engine, requests()) == expected
        counters = engine.stats().offload
        assert counters.num_read_bytes > 0
        assert outputs(engine, requests()) == expected, "from the prefix cache"


@pytest.mark.parametrize(("family", "quantization", "sizes"), CASES)
def test_outputs_are_equal(family: str, quantization: str | None, sizes: dict[str, int], tmp_path: Path) -> None:
    model = make_checkpoint(family, tmp_path / "model", **sizes)
    assert_equal_outputs(model, tmp_path / "weights", quantization=quantization)


def test_outputs_of_a_gguf_file_are_equal(tmp_path: Path) -> None:
    assert_equal_outputs(write_k_quants(tmp_path), tmp_path / "weights")


@pytest.mark.parametrize("fmt", ["gptq-order", slow_case("awq")])
def test_outputs_of_packed_weights_are_equal(fmt: str, tmp_path: Path) -> None:
    source = make_checkpoint("qwen3", tmp_path / "source", **LAYERS)
    written = write_packed(source, tmp_path / "packed", FORMATS[fmt])
    assert_equal_outputs(written.packed, tmp_path / "weights")
