"""The large model with random FP8 projections, in one file of values that all formats of scales share."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from torch import Tensor

from benchmarks.gpu.numerics.fp8_checkpoint import BLOCK, E4M3, LAST, ROWS, Format
from benchmarks.gpu.speed.large_model import (
    SEED,
    LargeModel,
    TensorSpec,
    drawn,
    large_config,
    large_cost,
    large_shapes,
    write_weights,
)
from benchmarks.gpu.stage import Setting

VALUES, SCALES = "values.safetensors", "scales.safetensors"
SPREAD = 64.0  # standard deviation of the values, whose largest number is 448
FP8_SUFFIX = "_proj.weight"


def ensure_large_fp8_model(setting: Setting, stored: Format) -> LargeModel:
    """Return the model in this format; create it if it is missing."""
    config = large_config(setting)
    shapes = large_shapes(config, setting)
    matrices = {name: shape for name, shape in shapes.items() if name.endswith(FP8_SUFFIX)}
    directory = setting.directory / f"qwen3-8b-shape-fp8{stored.suffix}"
    if not (directory / "config.json").exists():
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / VALUES).exists():
            os.link(_ensure_values(setting, shapes), directory / VALUES)
        scales = {name + stored.suffix: _scales(shape, stored) for name, shape in matrices.items()}
        specs = {name: TensorSpec(torch.float32, tensor.shape) for name, tensor in scales.items()}
        write_weights(specs, directory / SCALES, scales.__getitem__)
        files = dict.fromkeys(shapes, VALUES) | dict.fromkeys(scales, SCALES)
        (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
        transformers.GenerationConfig(eos_token_id=2).save_pretrained(directory)
        described = json.loads(config.to_json_string()) | {"quantization_config": stored.described}
        (directory / "config.json").write_text(json.dumps(described))  # last, as the mark of a complete checkpoint
    saved = sum(map(math.prod, matrices.values())) * (setting.dtype.itemsize - 1)
    cost = large_cost(config, shapes, setting.dtype, directory)
    return replace(cost, weight_bytes=cost.weight_bytes - saved)


def _ensure_values(setting: Setting, shapes: dict[str, torch.Size]) -> Path:
    path = setting.directory / "qwen3-8b-shape-fp8.safetensors"
    if path.exists():
        return path
    generator = torch.Generator(setting.device).manual_seed(SEED)

    def draw(name: str) -> Tensor:
        tensor = drawn(name, shapes[name], generator)
        if not name.endswith(FP8_SUFFIX):
            return tensor
        return tensor.mul_(SPREAD * math.sqrt(shapes[name][-1])).clamp_(-LAST, LAST)

    specs = {
        name: TensorSpec(E4M3 if name.endswith(FP8_SUFFIX) else setting.dtype, shape) for name, shape in shapes.items()
    }
    unfinished = path.with_suffix(".unfinished")
    write_weights(specs, unfinished, draw)
    return unfinished.rename(path)


def _scales(shape: torch.Size, stored: Format) -> Tensor:
    rows, columns = shape
    grid = (rows, 1) if stored is ROWS else (-(-rows // BLOCK), -(-columns // BLOCK))
    return torch.full(grid, 1 / (SPREAD * math.sqrt(columns)))
