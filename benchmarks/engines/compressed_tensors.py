"""Int8 checkpoints in the compressed-tensors format, which vLLM's CPU backend reads.

Weights have one scale per row; activations get one per token at run time.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS = "model.safetensors"
LAST = 127  # largest magnitude in int8
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
    """Write a copy of a bf16 checkpoint with the layers' matrices in int8 and everything else unchanged."""
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
