"""Small random checkpoints of every model family, with head sizes that the kernels support."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.checkpoints import make_checkpoint

SAVED = "config.json"


@dataclass(frozen=True, slots=True)
class SmallModel:
    """A checkpoint's architecture, by its name in tests/checkpoints.py, and overridden options."""

    architecture: str
    options: dict[str, Any] = field(default_factory=dict)
    is_sparse: bool = False  # MoE: near a tie, rounding changes the routing


# Matrices preserve the scale of activations: with larger weights, attention attends to a single token, and rounding may
# decide which.
_SIZES = {"hidden_size": 256, "intermediate_size": 384, "initializer_range": 0.06}
_HEADS = _SIZES | {"head_dim": 64}
_LATENT = _SIZES | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
_EXPERTS = {"moe_intermediate_size": 128}

SMALL_MODELS = (
    SmallModel("llama3", _HEADS),
    SmallModel("llama-biased", _HEADS | {"head_dim": 128}),
    SmallModel("qwen2", _SIZES),
    SmallModel("qwen2-yarn", _SIZES | {"hidden_size": 512, "initializer_range": 0.045}),
    SmallModel("qwen3", _HEADS | {"head_dim": 128}),
    SmallModel("mixtral", _HEADS, is_sparse=True),
    SmallModel("qwen3-moe", _HEADS | _EXPERTS, is_sparse=True),
    SmallModel("deepseek-v2-lite", _LATENT | _EXPERTS, is_sparse=True),
    SmallModel("deepseek-v3", _LATENT | _EXPERTS, is_sparse=True),
    SmallModel("glm4", _HEADS | {"head_dim": 128}),
    SmallModel("olmo2", _SIZES),
    SmallModel("qwen2-moe", _SIZES | _EXPERTS | {"shared_expert_intermediate_size": 128}, is_sparse=True),
)


def saved(model: SmallModel, directory: Path) -> Path:
    """Return the path of its bf16 checkpoint; create it if it is missing."""
    target = directory / model.architecture
    if not (target / SAVED).exists():
        make_checkpoint(model.architecture, target, dtype=torch.bfloat16, **model.options)
    return target
