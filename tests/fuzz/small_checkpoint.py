"""Handwritten checkpoints of a few kilobytes, since a fuzzer writes thousands."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCAB, HIDDEN, INNER, HEADS, HEAD_DIM, EXPERTS = 24, 16, 24, 2, 8, 2

DENSE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "eos_token_id": [2, 3],
    "hidden_act": "silu",
}
SPARSE = DENSE | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": EXPERTS,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": INNER,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
GENERATION: dict[str, Any] = {
    "temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1, "max_new_tokens": 9,
    "eos_token_id": 2,
}  # fmt: skip


def make_small(directory: Path, config: dict[str, Any]) -> Path:
    """Write DENSE or SPARSE and return the directory."""
    directory.mkdir(parents=True)
    torch.manual_seed(0)
    save_file(tensors_of(config), directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps(GENERATION))
    return directory


def make_sharded(directory: Path) -> Path:
    """Write DENSE as two files and an index."""
    make_small(directory, DENSE)
    (directory / "model.safetensors").unlink()
    tensors = tensors_of(DENSE)
    files = {name: f"model-{number % 2 + 1}-of-2.safetensors" for number, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, directory / file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return directory


def tensors_of(config: dict[str, Any]) -> dict[str, Tensor]:
    """Create every tensor that the config requires."""
    layer = "model.layers.0"
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        f"{layer}.input_layernorm.weight": (HIDDEN,),
        f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
        f"{layer}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": (HEAD_DIM, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": (HEAD_DIM, HIDDEN),
        f"{layer}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        f"{layer}.self_attn.q_norm.weight": (HEAD_DIM,),
        f"{layer}.self_attn.k_norm.weight": (HEAD_DIM,),
    }
    prefixes = [f"{layer}.mlp"]
    if "num_experts" in config:
        prefixes = [f"{layer}.mlp.experts.{expert}" for expert in range(EXPERTS)]
        shapes[f"{layer}.mlp.gate.weight"] = (EXPERTS, HIDDEN)
    for prefix in prefixes:
        shapes[f"{prefix}.gate_proj.weight"] = shapes[f"{prefix}.up_proj.weight"] = (INNER, HIDDEN)
        shapes[f"{prefix}.down_proj.weight"] = (HIDDEN, INNER)
    return {name: torch.randn(shape) for name, shape in shapes.items()}
