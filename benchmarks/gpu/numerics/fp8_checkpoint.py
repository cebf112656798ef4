"""Conversion of a bf16 checkpoint to one with FP8 projections."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

E4M3, LAST = torch.float8_e4m3fn, 448.0
BLOCK = 128
FILE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Format:
    """Granularity of the scales: one per block, as in DeepSeek-V3, or one per row."""

    name: str
    suffix: str
    described: dict[str, Any]

    def quantise(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight in e4m3, and its scales in fp32."""
        if self.suffix == "_scale":
            scales = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / LAST
            return (weight / scales).to(E4M3), scales
        rows, columns = (-(-size // BLOCK) for size in weight.shape)
        padded = torch.zeros(rows * BLOCK, columns * BLOCK)
        padded[: weight.shape[0], : weight.shape[1]] = weight
        scales = padded.view(rows, BLOCK, columns, BLOCK).abs().amax((1, 3)).clamp(min=1e-12) / LAST
        spread = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        return (padded / spread)[: weight.shape[0], : weight.shape[1]].contiguous().to(E4M3), scales


BLOCKS = Format(
    "blocks of 128 x 128",
    "_scale_inv",
    {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK], "activation_scheme": "dynamic"},
)
_E4M3_SCHEME = {"type": "float", "num_bits": 8, "symmetric": True}
ROWS = Format(
    "rows",
    "_scale",
    {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": _E4M3_SCHEME | {"strategy": "channel", "dynamic": False},
                "input_activations": _E4M3_SCHEME | {"strategy": "token", "dynamic": True},
            }
        },
    },
)


def quantised(source: Path, stored: Format) -> Path:
    """Return the path of `source` in this format, next to it; create it if it is missing."""
    target = source.with_name(f"{source.name}-fp8{stored.suffix}")
    if (target / FILE).exists():
        return target
    target.mkdir(exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(source / FILE).items():
        if name.endswith("_proj.weight"):
            tensors[name], tensors[name + stored.suffix] = stored.quantise(tensor.float())
        else:
            tensors[name] = tensor
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": stored.described}))
    if (generation := source / "generation_config.json").exists():
        shutil.copy(generation, target)
    save_file(tensors, target / FILE)
    return target
