"""Adapters of packed models give the tokens of the dequantised ones."""

from pathlib import Path

import pytest

from baton.engine.checkpoint.gguf.directory import checkpoint_directory
from baton.engine.lora import base_checkpoint
from tests.adapters import ALL_TARGETS, LATENT_TARGETS, make_adapter
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case, slow_except
from tests.unit.engine.lora.lora_rig import lora_engine, random_tokens, request, run
from tests.unit.engine.packed import compressed_writer
from tests.unit.engine.packed.gguf_writer import Type, write_gguf
from tests.unit.engine.packed.packed_writer import FORMATS, write_packed

PROMPT = random_tokens(30)
CASES = [
    ("qwen3", "gptq-order"),
    slow_case("llama3", "awq"),
    slow_case("qwen3", "w4a16-asym"),
    slow_case("llama3", "w8a8"),
    slow_case("llama3", "nvfp4"),
    slow_case("deepseek-v3", "gptq-8"),
]


def check_equal(packed: Path, exact: Path, adapter: Path) -> None:
    outputs = []
    for model in (packed, exact):
        engine = lora_engine(model)
        engine.adapters.load("a", adapter)
        outputs.append(run(engine, request("a", PROMPT, "a"), request("base", PROMPT)))
    assert outputs[0] == outputs[1]
    assert outputs[0]["a"] != outputs[0]["base"]


@pytest.mark.parametrize("family", slow_except(("mistral", "qwen3"), ("mistral",)))
@pytest.mark.parametrize("use_dora", [False, True])
def test_gguf(tmp_path: Path, family: str, use_dora: bool) -> None:
    """A file of Llama's kind has the rows of queries and keys in another order than adapters."""
    source = make_checkpoint(family, tmp_path / "source")
    written = write_gguf(source, tmp_path / "gguf", Type.Q8_0)
    adapter = make_adapter(source, tmp_path / "a", ["q_proj", "k_proj"], size=0.5, use_dora=use_dora)
    check_equal(checkpoint_directory(written.file, tmp_path / "cache"), written.exact, adapter)


@pytest.mark.parametrize(("family", "fmt"), CASES)
def test_dora(tmp_path: Path, family: str, fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_checkpoint, "CHUNK_ROWS", 40)  # several parts of each matrix
    sizes = {"q_lora_rank": 32} if family == "deepseek-v3" else {}
    source = make_checkpoint(family, tmp_path / "source", **sizes)
    stored = write_packed(source, tmp_path, (FORMATS | compressed_writer.FORMATS)[fmt])
    targets = (*LATENT_TARGETS, "o_proj") if family == "deepseek-v3" else ALL_TARGETS
    adapter = make_adapter(source, tmp_path / "a", targets, use_dora=True)
    check_equal(stored.packed, stored.exact, adapter)
