"""Small random checkpoints of every model family, with head sizes that the kernels support."""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tests.checkpoints import save_checkpoint

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
_WIDE = _SIZES | {"head_dim": 128}
_WIDEST = _SIZES | {"head_dim": 256, "query_pre_attn_scalar": 4096, "initializer_range": 0.04}
_LATENT = _SIZES | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
_EXPERTS = {"moe_intermediate_size": 128}
_LONG_ROPE = {"rope_type": "longrope", "short_factor": [1.1] * 24, "long_factor": [2.0] * 24}

SMALL_MODELS = (
    SmallModel("llama3", _HEADS),
    SmallModel("llama-biased", _WIDE),
    SmallModel("qwen2", _SIZES),
    SmallModel("qwen2-yarn", _SIZES | {"hidden_size": 512, "initializer_range": 0.045}),
    SmallModel("qwen3", _WIDE),
    SmallModel("mixtral", _HEADS, is_sparse=True),
    SmallModel("qwen3-moe", _HEADS | _EXPERTS, is_sparse=True),
    SmallModel("deepseek-v2-lite", _LATENT | _EXPERTS, is_sparse=True),
    SmallModel("deepseek-v3", _LATENT | _EXPERTS, is_sparse=True),
    SmallModel("glm4", _WIDE),
    SmallModel("olmo2", _SIZES),
    SmallModel("qwen2-moe", _SIZES | _EXPERTS | {"shared_expert_intermediate_size": 128}, is_sparse=True),
    SmallModel("gemma", _SIZES | {"head_dim": 256, "initializer_range": 0.03}),
    SmallModel("gemma2", _WIDEST),
    SmallModel("gemma3", _WIDEST),
    SmallModel("gpt-oss", _HEADS, is_sparse=True),
    SmallModel("llama4", _WIDE | {"intermediate_size": 128, "intermediate_size_mlp": 384}, is_sparse=True),
    SmallModel("mistral-window", _WIDE),
    SmallModel("ministral3", _WIDE),
    SmallModel("phi4-mini", _SIZES | {"rope_scaling": _LONG_ROPE}),
    SmallModel("phi3-window", _SIZES),
    SmallModel("olmo3", _SIZES),
    SmallModel("olmoe", _SIZES, is_sparse=True),
    SmallModel("granite", _SIZES),
    SmallModel("smollm3", _SIZES),
    SmallModel("seed-oss", _WIDE),
    SmallModel("ernie-moe", _SIZES | _EXPERTS, is_sparse=True),
    SmallModel("glm4-moe", _WIDE | _EXPERTS, is_sparse=True),
    SmallModel("glm4-moe-lite", _LATENT | _EXPERTS, is_sparse=True),
    SmallModel("minimax-m2", _WIDE | {"rotary_dim": 64, "num_local_experts": 4}, is_sparse=True),
)


def saved(model: SmallModel, directory: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Return the path of its checkpoint; create it if it is missing. Models of one architecture need two directories.

    It appears as a whole: other stages may run at the same time, and this one may be killed.
    """
    target = directory / (model.architecture + ("" if dtype == torch.bfloat16 else f"-{dtype}"))
    if (target / SAVED).exists():
        return target
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory) as new:
        made = save_checkpoint(model.architecture, Path(new) / target.name, dtype=dtype, **model.options)
        try:
            made.rename(target)
        except OSError:
            if not (target / SAVED).exists():  # otherwise another stage was faster
                raise
    return target
