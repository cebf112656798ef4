"""GPT-OSS checkpoints with experts in MXFP4, and the same numbers in float32."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of E2M1 codes; the fourth bit is the sign
GROUP, BIAS = 32, 127
Pair = tuple[Path, Path]


def write_mxfp4(source: Path, directory: Path) -> Pair:
    """Round the experts of a checkpoint; returns the one with packed experts and the one with the same numbers."""
    tensors = load_file(source / "model.safetensors")
    packed, exact = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            codes, exponents, numbers = rounded(tensor.transpose(1, 2))
            del packed[name]
            packed[f"{name}_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
            packed[f"{name}_scales"] = exponents
            exact[name] = numbers.transpose(1, 2).contiguous()
    written = []
    for kind, each in (("packed", packed), ("exact", exact)):
        target = shutil.copytree(source, directory / kind)
        save_file(each, target / "model.safetensors", metadata={"format": "pt"})
        written.append(target)
    config = json.loads((written[0] / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (written[0] / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
    return written[0], written[1]


def rounded(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Round [num_experts, rows, columns]; returns codes [.., groups, 32], exponents [.., groups] and the numbers."""
    groups = matrices.float().unflatten(2, (-1, GROUP))
    exponents = (groups.abs().amax(3) / VALUES[-1]).log2().ceil()
    scales = exponents.exp2().unsqueeze(3)
    table = torch.tensor(VALUES)
    places = (groups.abs().unsqueeze(4) / scales.unsqueeze(4) - table).abs().argmin(4)
    codes = (places + 8 * (groups < 0)).to(torch.uint8)
    numbers = table[places] * scales * torch.where(groups < 0, -1.0, 1.0)
    return codes, (exponents + BIAS).to(torch.uint8), numbers.flatten(2)
