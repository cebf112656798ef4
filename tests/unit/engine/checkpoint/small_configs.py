"""Configs of small models, and a function that writes them."""

import json
from pathlib import Path
from typing import Any

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}
QWEN3_MOE = LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
LLAMA4 = LLAMA | {
    "architectures": ["Llama4ForCausalLM"],
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
    "attention_chunk_size": 128,
}
DEEPSEEK_V2 = LLAMA | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}


PHI4_MINI = LLAMA | {
    "architectures": ["Phi3ForCausalLM"],
    "max_position_embeddings": 1024,
    "original_max_position_embeddings": 128,
    "partial_rotary_factor": 0.75,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [4] * 6},
}
GEMMA4 = LLAMA | {
    "architectures": ["Gemma4ForCausalLM"],
    "sliding_window": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def write(directory: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory
