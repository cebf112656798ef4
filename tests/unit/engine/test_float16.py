"""Models in float16, as on a GPU: torch's operations and attention, here on a CPU, against transformers."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from baton.engine.attention.torch_reference import TorchAttention
from baton.engine.ops import factory
from baton.engine.ops.torch_ops import TorchOps
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.paged_model import PagedModel
from tests.unit.engine.packed.packed_writer import FORMATS, write_packed
from tests.unit.engine.test_models import oracle_logits, random_tokens


@pytest.fixture(autouse=True)
def torch_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native operations, which have no float16, are replaced by torch's."""
    monkeypatch.setattr(factory, "CPU_OPS", TorchOps())


def in_float16(directory: Path) -> PagedModel:
    return PagedModel(directory, dtype="float16", attention_of=TorchAttention.for_model, on_cpu=False)


@pytest.mark.parametrize("architecture", ["qwen3", slow_case("qwen3-moe"), slow_case("deepseek-v3")])
def test_float16_is_as_close_to_float32_as_the_oracles(architecture: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(architecture, tmp_path)
    prompts = {f"s{seed}": random_tokens(30, seed) for seed in range(8)}
    exact, rounded = (
        AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager", dtype=dtype)
        for dtype in (torch.float32, torch.float16)
    )
    model = in_float16(checkpoint)
    assert model.pool.dtype == torch.float16
    expected = {name: oracle_logits(exact, tokens) for name, tokens in prompts.items()}
    error = torch.cat([logits - expected[name] for name, logits in model.step(prompts).items()]).abs()
    oracle_error = torch.cat([oracle_logits(rounded, tokens) - expected[name] for name, tokens in prompts.items()])
    # Medians, since a rounded router now and then chooses another expert, in either implementation.
    assert error.median() < 1.2 * oracle_error.abs().median()
    assert error.median() < 0.01  # an eighth of bfloat16's


@pytest.mark.parametrize("name", ["awq", slow_case("gptq")])
def test_packed_weights_are_multiplied_in_float16(name: str, tmp_path: Path) -> None:
    stored = write_packed(make_checkpoint("llama3", tmp_path / "whole"), tmp_path / "stored", FORMATS[name])
    tokens = random_tokens(40, 1)
    exact = PagedModel(stored.packed, dtype="float32").step({"a": tokens})["a"]
    error = (in_float16(stored.packed).step({"a": tokens})["a"] - exact).abs()
    assert error.median() < 0.01
