"""Gives a checkpoint the scales of KV in FP8."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


def add_tensors(model: Path, tensors: dict[str, Tensor]) -> Path:
    """The checkpoint, which lies in one file, with these tensors too."""
    path = model / "model.safetensors"
    save_file(load_file(path) | tensors, path, metadata={"format": "pt"})
    return model


def add_kv_scales(model: Path, num_layers: int = 3, first: float = 0.02) -> Path:
    """The checkpoint with scales that are no powers of two, others in every layer and for keys and values."""
    scales = {}
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}.self_attn"
        scales[f"{prefix}.k_scale"] = torch.tensor(first * (1 + layer))
        scales[f"{prefix}.v_scale"] = torch.tensor([first * (1.7 + layer)])
    return add_tensors(model, scales)
