"""Random checkpoint with the shape of Qwen3-8B, generated on the device, for all compared engines."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.gpu.stage import Setting

SEED = 0
QWEN3_8B: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 2,
}
QUICK = QWEN3_8B | {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3"}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Type and shape of a tensor in a file."""

    dtype: torch.dtype
    shape: torch.Size


@dataclass(frozen=True, slots=True)
class LargeModel:
    """The checkpoint, and its cost per token."""

    directory: Path
    dtype: torch.dtype
    num_product_weights: int  # of matrices used for every token
    weight_bytes: int  # bytes of the product weights, which a step reads at any batch size
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    @property
    def kv_bytes(self) -> int:
        """KV bytes of a token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def prefill_flops(self, num_tokens: int) -> float:
        """Return the FLOPs of a prefill, without the head, which computes only the last token's logits."""
        attention = 2 * self.num_layers * self.num_heads * self.head_dim * num_tokens**2  # causal: half of 4 L H D T^2
        return 2.0 * self.num_product_weights * num_tokens + attention


def large_config(setting: Setting) -> transformers.Qwen3Config:
    """Return the model's configuration."""
    config = transformers.Qwen3Config(**(QUICK if setting.is_quick else QWEN3_8B), dtype=setting.dtype_name)
    config.architectures = ["Qwen3ForCausalLM"]
    return config


def large_shapes(config: transformers.Qwen3Config, setting: Setting) -> dict[str, torch.Size]:
    """Return the shapes of the model's tensors by name."""
    with torch.device("meta"):
        state = transformers.AutoModelForCausalLM.from_config(config, dtype=setting.dtype).state_dict()
    return {name: tensor.shape for name, tensor in state.items()}


def ensure_large_model(setting: Setting) -> LargeModel:
    """Return the model; create it if it is missing."""
    config, dtype = large_config(setting), setting.dtype
    shapes = large_shapes(config, setting)
    directory = setting.directory / "qwen3-8b-shape"
    if not (directory / "config.json").exists():
        directory.mkdir(parents=True, exist_ok=True)
        generator = torch.Generator(setting.device).manual_seed(SEED)
        specs = {name: TensorSpec(dtype, shape) for name, shape in shapes.items()}
        write_weights(specs, directory / "model.safetensors", lambda name: drawn(name, shapes[name], generator))
        transformers.GenerationConfig(eos_token_id=2).save_pretrained(directory)
        config.save_pretrained(directory)  # last, as the mark of a complete checkpoint
    return large_cost(config, shapes, dtype, directory)


def large_cost(
    config: transformers.Qwen3Config, shapes: Mapping[str, torch.Size], dtype: torch.dtype, directory: Path
) -> LargeModel:
    """Return the cost per token of the model with unquantised weights."""
    matrices = [math.prod(shape) for name, shape in shapes.items() if name.endswith("_proj.weight")]
    num_product_weights = sum(matrices) + math.prod(shapes["lm_head.weight"])
    return LargeModel(
        directory=directory,
        dtype=dtype,
        num_product_weights=num_product_weights,
        weight_bytes=num_product_weights * dtype.itemsize,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
    )


def write_weights(specs: Mapping[str, TensorSpec], path: Path, draw: Callable[[str], Tensor]) -> None:
    """Draw tensors one by one, by name, and write them in the safetensors format."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, spec in specs.items():
        end = offset + spec.dtype.itemsize * math.prod(spec.shape)
        header[name] = {"dtype": DTYPES[spec.dtype], "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name, spec in specs.items():
            tensor = draw(name).to(spec.dtype).cpu()
            file.write(memoryview(tensor.view(torch.uint8).numpy()))


def drawn(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Return a random tensor: norms near one, matrices that preserve the scale of activations."""
    tensor = torch.empty(shape, device=generator.device)
    if name.endswith("norm.weight"):
        return tensor.uniform_(0.8, 1.2, generator=generator)
    return tensor.normal_(0, 1 / math.sqrt(shape[-1]), generator=generator)
