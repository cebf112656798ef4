"""LoRA adapters with random matrices for tests, in PEFT's format, large enough to change tokens."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

ALL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LATENT_TARGETS = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")  # of latent attention, besides o_proj


def make_adapter(
    model: Path,
    directory: Path,
    targets: Sequence[str] = ALL_TARGETS,
    *,
    rank: int = 4,
    seed: int = 0,
    size: float = 0.3,
    ranks: Mapping[str, int] | None = None,
    **options: object,
) -> Path:
    """Save an adapter of a checkpoint's projections `targets`, and return its directory.

    size: standard deviation of the matrices, of which lm_head gets a third, as it would decide all tokens, and of the
    changes of magnitudes with use_dora; ranks: those of some targets; options: of adapter_config.json.
    """
    draw = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    with safe_open(model / "model.safetensors", framework="pt") as checkpoint:
        names = {name.removesuffix(".weight"): name for name in tuple(checkpoint.keys()) if name.endswith(".weight")}
        if "lm_head" in targets:
            names.setdefault("lm_head", names["model.embed_tokens"])  # tied
        for module in sorted(names):
            target = module.rpartition(".")[2]
            if target in targets:
                outputs, inputs = checkpoint.get_slice(names[module]).get_shape()
                a, b = "lora_A.weight", "lora_B.weight"
                if target == "embed_tokens":
                    outputs, inputs, a, b = inputs, outputs, "lora_embedding_A", "lora_embedding_B"
                width, spread = (ranks or {}).get(target, rank), size / 3 if target == "lm_head" else size
                prefix = f"base_model.model.{module}"
                tensors[f"{prefix}.{a}"] = torch.randn(width, inputs, generator=draw) * spread
                tensors[f"{prefix}.{b}"] = torch.randn(outputs, width, generator=draw) * spread
                if options.get("use_dora") and target != "embed_tokens":
                    norms = checkpoint.get_tensor(names[module]).float().norm(dim=1)
                    factors = 1 + torch.randn(outputs, generator=draw) * size
                    tensors[f"{prefix}.lora_magnitude_vector"] = norms * factors
    config: dict[str, object] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(targets),
        "bias": "none",
        "inference_mode": True,
    }
    write_adapter(directory, tensors, config | ({"rank_pattern": dict(ranks)} if ranks else {}) | options)
    return directory


def write_adapter(directory: Path, tensors: Mapping[str, Tensor], config: Mapping[str, object]) -> None:
    """Save the files of an adapter."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps(config))
