"""A checkpoint whose matrices are int8, in the format of compressed-tensors, which vLLM's CPU backend reads.

Weights have one scale a row, activations get one a token while the model runs.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS = "model.safetensors"
LAST = 127  # of int8, both ways
NOT_QUANTISED = "lm_head"
QUANTISATION = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": [NOT_QUANTISED],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False},
            "input_activations": {
                "num_bits": 8, "type": "int", "strategy": "token", "symmetric": False, "dynamic": True,
            },
        }
    },
}  # fmt: skip


def write_int8(checkpoint: Path, target: Path) -> None:
    """Another checkpoint beside one in bf16, of which everything but the layers' matrices is kept."""
    target.mkdir(parents=True)
    for path in checkpoint.iterdir():
        if path.suffix != ".safetensors" and path.name != "config.json":
            shutil.copy(path, target)
    config = json.loads((checkpoint / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": QUANTISATION}, indent=2))
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(checkpoint / WEIGHTS).items():
        if tensor.dim() == 2 and name.startswith("model.layers."):
            scale = (tensor.float().abs().amax(1, keepdim=True) / LAST).clamp_(min=1e-8)  # [rows, 1]
            tensors[name] = (tensor.float() / scale).round_().to(torch.int8)
            tensors[f"{name}_scale"] = scale.bfloat16()
        else:
            tensors[name] = tensor
    save_file(tensors, target / WEIGHTS, {"format": "pt"})
