"""Loading tensors from files, and the errors for files that do not match the config."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.checkpoint.tensor_index import read_tensors
from baton.engine.checkpoint.weights import Weights
from baton.engine.errors import InvalidCheckpoint
from baton.engine.models import load_model
from tests.checkpoints import make_checkpoint
from tests.paged_model import CPU, PagedModel

PROMPT = {"s": list(range(3, 40))}


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("qwen3"))


def logits(directory: Path) -> Tensor:
    return PagedModel(directory).step(PROMPT)["s"]


def rewrite(source: Path, target: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """A copy of a checkpoint with its tensors changed."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors")
    return target


def test_shards_load_like_one_file(qwen3: Path, tmp_path: Path) -> None:
    sharded = make_checkpoint("qwen3", tmp_path, max_shard_size="200KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert torch.equal(logits(sharded), logits(qwen3))


@pytest.mark.parametrize("architecture", ["mixtral", "qwen3-moe", "deepseek-v3"])
def test_fused_experts_load_like_separate_ones(architecture: str, tmp_path: Path) -> None:
    separate = make_checkpoint(architecture, tmp_path / "separate")
    names = ("w1", "w3", "w2") if architecture == "mixtral" else ("gate_proj", "up_proj", "down_proj")

    def fuse(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.endswith(f"experts.0.{names[0]}.weight")]:
            prefix = name.removesuffix(f".0.{names[0]}.weight")
            gate, up, down = (
                torch.stack([tensors.pop(f"{prefix}.{expert}.{part}.weight") for expert in range(8)]) for part in names
            )
            tensors[f"{prefix}.gate_up_proj"], tensors[f"{prefix}.down_proj"] = torch.cat([gate, up], dim=1), down

    fused = rewrite(separate, tmp_path / "fused", fuse)
    assert len(read_tensors(fused)) < len(read_tensors(separate))
    assert torch.equal(logits(fused), logits(separate))


def test_a_tied_head_may_be_in_the_files_as_well(qwen3: Path, tmp_path: Path) -> None:
    def add_head(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    assert torch.equal(logits(rewrite(qwen3, tmp_path, add_head)), logits(qwen3))


def test_speculative_layers_are_left_out(tmp_path: Path) -> None:
    plain = make_checkpoint("deepseek-v3", tmp_path / "plain", num_nextn_predict_layers=1)

    def add_layer(tensors: dict[str, Tensor]) -> None:
        tensors["model.layers.3.eh_proj.weight"] = torch.zeros(64, 128)

    assert torch.equal(logits(rewrite(plain, tmp_path / "more", add_layer)), logits(plain))


def test_float16_weights_keep_their_values(tmp_path: Path) -> None:
    half = make_checkpoint("qwen3", tmp_path / "half", dtype=torch.float16)
    exact = rewrite(half, tmp_path / "exact", lambda t: t.update({name: t[name].float() for name in t}))
    assert read_model_config(half).dtype == "float32"
    assert torch.equal(logits(half), logits(exact))


def test_wrong_tensors_are_named(qwen3: Path, tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    changes: dict[str, Callable[[dict[str, Tensor]], Any]] = {
        f"tensor {name} is missing": lambda tensors: tensors.pop(name),
        rf"tensor {name} has shape \[3, 64\], but the config needs \[64, 64\]": lambda tensors: tensors.update(
            {name: torch.zeros(3, 64)}
        ),
        r"has no use for: model\.layers\.1\.self_attn\.k_proj\.bias": lambda tensors: tensors.update(
            {name.replace("weight", "bias"): torch.zeros(64)}
        ),
    }
    for index, (message, change) in enumerate(changes.items()):
        broken = rewrite(qwen3, tmp_path / str(index), change)
        with pytest.raises(InvalidCheckpoint, match=message):
            logits(broken)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"neither model\.safetensors nor"):
        read_tensors(tmp_path)
    sharded = make_checkpoint("qwen3", tmp_path / "sharded", max_shard_size="200KB")
    first, second = sorted(sharded.glob("*.safetensors"))[:2]
    content = first.read_bytes()
    first.write_bytes(content[:-100])
    with pytest.raises(InvalidCheckpoint, match=f"{first.name} has .* bytes, but its header says"):
        read_tensors(sharded)
    first.write_bytes(content[:40])
    with pytest.raises(InvalidCheckpoint, match=f"{first.name} is truncated"):
        read_tensors(sharded)
    first.write_bytes(second.read_bytes())
    with pytest.raises(InvalidCheckpoint, match=f"is in {first.name} and in {second.name}"):
        read_tensors(sharded)
    first.unlink()
    with pytest.raises(InvalidCheckpoint, match=f"{first.name} does not exist"):
        read_tensors(sharded)


def test_an_index_that_contradicts_the_files_is_refused(tmp_path: Path) -> None:
    sharded = make_checkpoint("qwen3", tmp_path, max_shard_size="200KB")
    index = sharded / "model.safetensors.index.json"
    entries = json.loads(index.read_text())
    entries["weight_map"]["model.phantom.weight"] = min(entries["weight_map"].values())
    index.write_text(json.dumps(entries))
    with pytest.raises(InvalidCheckpoint, match=r"model\.phantom\.weight is not in"):
        read_tensors(sharded)


def test_progress_rises_to_one(qwen3: Path) -> None:
    from baton.engine.attention.torch_reference import TorchAttention

    config = read_model_config(qwen3)
    reported: list[float] = []
    load_model(qwen3, config, CPU, TorchAttention.for_model(config, 16), reported.append)
    assert reported == sorted(reported)
    assert len(reported) > 10
    assert reported[-1] == 1.0


def test_weights_convert_to_the_models_dtype(qwen3: Path) -> None:
    stored = load_file(qwen3 / "model.safetensors")["model.norm.weight"]
    weights = Weights(qwen3, torch.bfloat16, CPU)
    assert torch.equal(weights.take("model.norm.weight", 64), stored.bfloat16())
    assert torch.equal(weights.take("model.norm.weight", 64, dtype=torch.float32), stored)
