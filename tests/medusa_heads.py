"""Random Medusa heads for tests, in the formats of Medusa's own code and of vLLM."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

OWN_FILE = "medusa_lm_head.safetensors"


def random_heads(
    model: Path, directory: Path, *, num_heads: int = 3, num_layers: int = 2, is_own: bool = True, seed: int = 0
) -> dict[str, Tensor]:
    """Save heads for a model, and return their tensors by their names in Medusa's own code. is_own: or as vLLM's."""
    config, draw = json.loads((model / "config.json").read_text()), torch.Generator().manual_seed(seed)
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    tensors: dict[str, Tensor] = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            tensors[f"{head}.{layer}.linear.weight"] = torch.randn(hidden, hidden, generator=draw) * hidden**-0.5
            tensors[f"{head}.{layer}.linear.bias"] = torch.randn(hidden, generator=draw)
        tensors[f"{head}.{num_layers}.weight"] = torch.randn(vocab, hidden, generator=draw)
    directory.mkdir()
    if is_own:
        options = {"medusa_num_heads": num_heads, "medusa_num_layers": num_layers}
        save_file(tensors, directory / OWN_FILE)
    else:
        options = {"num_heads": num_heads, "num_hidden_layers": num_layers, "medusa_fc_bias": True}
        save_file({_in_vllm(name, num_layers): each for name, each in tensors.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(options))
    return tensors


def _in_vllm(name: str, num_layers: int) -> str:
    head, layer, *_, kind = name.split(".")
    return f"lm_heads.{head}.{kind}" if int(layer) == num_layers else f"blocks.{head}.layers.{layer}.{kind}"
