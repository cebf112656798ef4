"""Draft models made of the model for which they draft: with noise in the weights, or with other sizes."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


def copy_of(model: Path, directory: Path) -> Path:
    """Copy a checkpoint with its tokenizer; returns the directory."""
    shutil.copytree(model, directory)
    return directory


def with_noise(model: Path, directory: Path, share: float, seed: int = 0) -> Path:
    """Copy a checkpoint with normal noise of `share` of each matrix's deviation; returns the directory."""
    copy_of(model, directory)
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(directory / WEIGHTS)
    for tensor in (each for each in tensors.values() if each.dim() > 1):
        noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std()
        tensor += (share * noise).to(tensor.dtype)
    save_file(tensors, directory / WEIGHTS, {"format": "pt"})
    return directory


def with_vocabulary(directory: Path, vocab_size: int) -> Path:
    """Drop the last tokens from a checkpoint's embedding and head in place; returns the directory."""
    tensors = load_file(directory / WEIGHTS)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name] = tensors[name][:vocab_size].clone()
    save_file(tensors, directory / WEIGHTS, {"format": "pt"})
    return with_config(directory, vocab_size=vocab_size)


def with_config(directory: Path, **changes: object) -> Path:
    """Change a checkpoint's config.json in place, None: without the key; returns the directory."""
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return directory
