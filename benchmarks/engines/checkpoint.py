"""Random checkpoints for the engine comparison."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from scripts.make_random_checkpoint import QWEN3_06B, random_tensor, save_tokenizer

SEED = 0
DONE = "complete"
# Gain of the query and key norms. Without it, attention averages all values, so that each token depends only on the
# last one and outputs soon repeat; with twice this gain, bf16 rounding changes tokens.
ATTENTION_GAIN = 1.4
TOKENIZER_CLASS = "PreTrainedTokenizerFast"  # also known to readers of older versions


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's architecture and sizes; `name` is also its folder's name."""

    name: str
    config_class: str
    options: Mapping[str, object]


DENSE = Shape("qwen3-0.6b", "Qwen3Config", QWEN3_06B)
MOE = Shape(
    "qwen3-moe",
    "Qwen3MoeConfig",
    {
        **QWEN3_06B,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "moe_intermediate_size": 512,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
)


def ensure_checkpoint(shape: Shape, directory: Path) -> Path:
    """Return the checkpoint's folder in `directory`; create it if it is missing."""
    target = directory / shape.name
    if not (target / DONE).exists():
        make_checkpoint(shape, target)
        (target / DONE).touch()
    return target


def make_checkpoint(shape: Shape, target: Path) -> None:
    """Write deterministic bf16 weights whose matrices preserve the scale of activations."""
    config = getattr(transformers, shape.config_class)(**shape.options, dtype="bfloat16")
    with torch.device("meta"):  # skip initialisation
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.to_empty(device="cpu").tie_weights()
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            gain = ATTENTION_GAIN if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
            parameter.copy_(random_tensor(name, parameter.shape, generator) * gain)
    model.save_pretrained(target)
    transformers.GenerationConfig(eos_token_id=[2, 0]).save_pretrained(target)
    save_tokenizer(target, config.vocab_size, config.max_position_embeddings)
    # Some readers know only the names of older versions.
    _set(target / "config.json", **shape.options, torch_dtype="bfloat16")
    _set(target / "tokenizer_config.json", tokenizer_class=TOKENIZER_CLASS)


def _set(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}, indent=2) + "\n")
