"""FP8 checkpoints, and the same numbers dequantised, for code without FP8 support."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

E4M3 = torch.float8_e4m3fn
LAST = 448.0
MATRICES = ("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight", "_proj_with_mqa.weight", ".gate_up_proj")
Grid = Callable[[Tensor], Tensor]  # a matrix to its scales, of the shape that is stored


def of_tensor(matrix: Tensor) -> Tensor:
    return matrix.abs().amax()


def of_tensor_listed(matrix: Tensor) -> Tensor:
    return of_tensor(matrix)[None]


def of_rows(matrix: Tensor) -> Tensor:
    return matrix.abs().amax(-1, keepdim=True)


@dataclass(frozen=True, slots=True)
class OfBlocks:
    """One scale per block; blocks at the ends are smaller if the sizes are not multiples of a block's."""

    rows: int
    columns: int

    def __call__(self, matrix: Tensor) -> Tensor:
        num_rows, num_columns = matrix.shape[-2:]
        below, right = -num_rows % self.rows, -num_columns % self.columns
        padded = torch.nn.functional.pad(matrix.abs(), (0, right, 0, below))
        return padded.unflatten(-1, (-1, self.columns)).unflatten(-3, (-1, self.rows)).amax((-3, -1))

    def spread(self, scales: Tensor, shape: torch.Size) -> Tensor:
        whole = scales.repeat_interleave(self.rows, -2).repeat_interleave(self.columns, -1)
        return whole[..., : shape[-2], : shape[-1]]


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """Storage format of FP8 matrices."""

    config: dict[str, Any]
    largest: Grid  # largest element per scale
    suffix: str = "_scale"
    input_scale: str = ""  # name of a static activation scale
    more: tuple[str, ...] = ()  # other matrices that are converted
    scale_dtype: torch.dtype = field(default=torch.float32)


def _compressed(of_weights: str, **tokens: Any) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": of_weights, "symmetric": True, "dynamic": False}
    group: dict[str, Any] = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    if tokens:
        group["input_activations"] = {"num_bits": 8, "type": "float", "symmetric": True, **tokens}
    groups = {"group_0": group}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head"],
        "config_groups": groups,
    }


def blocks(rows: int, columns: int) -> Fp8Format:
    """The format of DeepSeek-V3 and Qwen3-FP8, with blocks of this size."""
    config = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [rows, columns],
    }
    return Fp8Format(config | {"modules_to_not_convert": ["lm_head"]}, OfBlocks(rows, columns), "_scale_inv")


FORMATS = {
    "blocks": blocks(128, 128),
    "blocks-24x20": blocks(24, 20),
    "channel": Fp8Format(
        _compressed("channel", strategy="token", dynamic=True), of_rows, more=("lm_head.weight",),
        scale_dtype=torch.bfloat16,
    ),
    "tensor": Fp8Format(
        _compressed("tensor", strategy="tensor", dynamic=False), of_tensor_listed, input_scale="input_scale"
    ),
    "weights-alone": Fp8Format(_compressed("channel"), of_rows),
    "plain": Fp8Format(
        {"quant_method": "fp8", "activation_scheme": "static"}, of_tensor, input_scale="input_scale"
    ),
    "plain-inverse": Fp8Format(
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}, of_tensor, "_scale_inv",
        input_scale="activation_scale", scale_dtype=torch.bfloat16,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stored:
    """Folders of an FP8 checkpoint, and of one in fp32 with the same numbers dequantised."""

    fp8: Path
    exact: Path


def write_fp8(source: Path, directory: Path, fmt: Fp8Format) -> Stored:
    """Write both checkpoints. source: a checkpoint in fp32 with one file."""
    stored = Stored(directory / "fp8", directory / "exact")
    tensors = load_file(source / "model.safetensors")
    quantised, exact = dict(tensors), dict(tensors)
    for name, matrix in tensors.items():
        if not (name.endswith((*MATRICES, ".down_proj")) or name in fmt.more):
            continue
        scales = (fmt.largest(matrix) / LAST).to(fmt.scale_dtype)
        spread = scales.float() if not isinstance(fmt.largest, OfBlocks) else fmt.largest.spread(scales, matrix.shape)
        values = (matrix / spread).clamp(-LAST, LAST).to(E4M3)
        quantised[name], quantised[name + fmt.suffix] = values, scales
        exact[name] = values.float() * spread
        if fmt.input_scale:
            quantised[f"{name.removesuffix('.weight')}.{fmt.input_scale}"] = torch.tensor(0.02)
    config = json.loads((source / "config.json").read_text())
    _write(source, stored.fp8, quantised, config | {"dtype": "bfloat16", "quantization_config": fmt.config})
    _write(source, stored.exact, exact, config | {"dtype": "float32"})
    return stored


def _write(source: Path, target: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    shutil.copytree(source, target)
    (target / "config.json").write_text(json.dumps(config))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, target / "model.safetensors", {"format": "pt"}
    )
