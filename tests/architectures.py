"""Tiny models of every architecture: the class of transformers' config, and its options."""

from typing import Any

VOCAB_SIZE = 320

_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_LATENT = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "rope_scaling": {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.9,
    },
}
_EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 8}

_BIASED_EXPERTS = _ATTENTION | {
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 0,
}
_LOCAL = _ATTENTION | {"num_hidden_layers": 4, "sliding_window": 24}
_GEMMA4 = _LOCAL | {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "final_logit_softcapping": 4.0,
    "tie_word_embeddings": False,  # with a small vocabulary, tied ones repeat a token
}
_GRANITE = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.2,
    "logits_scaling": 1.5,
}

_DELTA_NETS = _ATTENTION | {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "initializer_range": 0.05,  # norms have a weight of 1.5 to 2.5
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
_SHARED_EXPERT = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
    "num_experts": 8,
    "num_experts_per_tok": 3,
}

_MIXERS = {
    "num_hidden_layers": 3,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "shared_intermediate_size": 80,
}
_HYBRID = ["linear_attention", "full_attention", "linear_attention"]

# What each name stands for: the class of transformers' config, and its options.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("LlamaConfig", _ATTENTION | {"num_key_value_heads": 4}),
    "llama3": (
        "LlamaConfig",
        _ATTENTION
        | {
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "llama-biased": ("LlamaConfig", _ATTENTION | {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("LlamaConfig", _ATTENTION | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "mistral": ("MistralConfig", _ATTENTION | {"sliding_window": None}),
    "ministral3": (
        "Ministral3Config",
        _ATTENTION
        | {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 16.0,
                "original_max_position_embeddings": 32,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.5,
            }
        },
    ),
    "qwen2": ("Qwen2Config", {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2-yarn": (
        "Qwen2Config",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        },
    ),
    "qwen3": ("Qwen3Config", _ATTENTION | {"head_dim": 32, "tie_word_embeddings": True}),
    "mixtral": ("MixtralConfig", _ATTENTION | _EXPERTS),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        _ATTENTION | {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True},
    ),
    "qwen3-moe-mixed": (
        "Qwen3MoeConfig",
        _ATTENTION
        | {
            "moe_intermediate_size": 32,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "norm_topk_prob": False,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
        },
    ),
    "deepseek-v2": (
        "DeepseekV2Config",
        _LATENT | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 3.0, "attention_bias": True},
    ),
    "deepseek-v2-lite": (
        "DeepseekV2Config",
        _LATENT | {"q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "rope_scaling": None},
    ),
    "deepseek-v3": ("DeepseekV3Config", _LATENT | {"routed_scaling_factor": 2.5, "num_nextn_predict_layers": 0}),
    "deepseek-v32": (
        "DeepseekV32Config",
        _LATENT
        | {"routed_scaling_factor": 2.5, "num_nextn_predict_layers": 0}
        | {"index_topk": 24, "index_n_heads": 16, "index_head_dim": 16},
    ),
    "phi3": ("Phi3Config", {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": None}),
    "phi4-mini": (
        "Phi3Config",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
            "original_max_position_embeddings": 512,
            "sliding_window": 4096,
            "tie_word_embeddings": True,
            "partial_rotary_factor": 0.75,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0, 1.1, 1.2, 1.4, 1.7, 2.0],
                "long_factor": [1.0, 1.5, 2.0, 4.0, 6.0, 8.0],
            },
        },
    ),
    "qwen2-moe": (
        "Qwen2MoeConfig",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "num_hidden_layers": 4,
            "mlp_only_layers": [2],
        },
    ),
    "olmo2": ("Olmo2Config", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "olmoe": ("OlmoeConfig", {"num_attention_heads": 4, "num_key_value_heads": 2} | _EXPERTS | {"num_experts": 8}),
    "glm4-moe-lite": (
        "Glm4MoeLiteConfig",
        {key: value for key, value in _LATENT.items() if key not in ("rope_scaling", "first_k_dense_replace")}
        | {"mlp_layer_types": ["dense", "sparse", "sparse"], "routed_scaling_factor": 1.8},
    ),
    "smollm3": (
        "SmolLM3Config",
        {"num_attention_heads": 4, "num_key_value_heads": 2, "no_rope_layers": [1, 0, 1], "attention_bias": True},
    ),
    "granite": ("GraniteConfig", _GRANITE | {"attention_bias": True, "mlp_bias": True}),
    "granite-moe": ("GraniteMoeConfig", _GRANITE | _EXPERTS),
    "glm": ("GlmConfig", _ATTENTION),
    "glm4": ("Glm4Config", _ATTENTION),
    "glm4-moe": ("Glm4MoeConfig", _BIASED_EXPERTS | {"use_qk_norm": True, "attention_bias": True, "n_group": 1}),
    "seed-oss": ("SeedOssConfig", _ATTENTION | {"attention_out_bias": True}),
    "ernie": ("Ernie4_5Config", _ATTENTION | {"use_bias": True}),
    "ernie-moe": (
        "Ernie4_5_MoeConfig",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "moe_num_experts": 8,
            "moe_k": 3,
            "moe_num_shared_experts": 2,
            "moe_intermediate_size": 32,
            "num_hidden_layers": 4,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 2,
        },
    ),
    "mistral-window": ("MistralConfig", _ATTENTION | {"sliding_window": 24}),
    "qwen2-window": (
        "Qwen2Config",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "use_sliding_window": True,
            "sliding_window": 24,
            "max_window_layers": 1,
        },
    ),
    "phi3-window": ("Phi3Config", {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 24}),
    "olmo3": (
        "Olmo3Config",
        {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4, "sliding_window": 24},
    ),
    "gemma": ("GemmaConfig", _ATTENTION),
    "gemma2": (
        "Gemma2Config",
        _LOCAL
        | {
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 4.0,
            "query_pre_attn_scalar": 24,
            "tie_word_embeddings": False,  # with a small vocabulary, tied ones repeat a token
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        _LOCAL
        | {
            "query_pre_attn_scalar": 20,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gemma4": (
        "Gemma4TextConfig",
        _GEMMA4
        | {
            "num_key_value_heads": 1,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4-large": (
        "Gemma4TextConfig",
        _GEMMA4
        | {
            "num_key_value_heads": 4,
            "head_dim": 8,
            "global_head_dim": 12,
            "num_global_key_value_heads": 2,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
            "use_bidirectional_attention": "vision",
        },
    ),
    "gemma4-moe": (
        "Gemma4TextConfig",
        _GEMMA4
        | {
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "global_head_dim": 24,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
    ),
    "llama4": (
        "Llama4TextConfig",
        _ATTENTION
        | {
            "num_hidden_layers": 4,
            "intermediate_size": 48,
            "intermediate_size_mlp": 96,
            "num_local_experts": 8,
            "num_experts_per_tok": 1,
            "moe_layers": [1, 2, 3],
            "attention_chunk_size": 32,
            "floor_scale": 20,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "gpt-oss": (
        "GptOssConfig",
        _LOCAL
        | _EXPERTS
        | {
            "num_experts_per_tok": 3,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 128,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "rope_theta": 150000.0,
            },
        },
    ),
    "qwen3-next": ("Qwen3NextConfig", _DELTA_NETS | _SHARED_EXPERT | {"mlp_only_layers": [1, 2]}),
    "qwen3.5": ("Qwen3_5TextConfig", _DELTA_NETS | {"attention_bias": True}),
    "qwen3.5-moe": (
        "Qwen3_5MoeTextConfig",
        _DELTA_NETS | _SHARED_EXPERT | {"layer_types": [*["linear_attention", "full_attention"] * 2]},
    ),
    "nemotron-h": (
        "NemotronHConfig",
        _ATTENTION
        | {
            "layers_block_type": [*("linear_attention", "mlp", "full_attention"), *("linear_attention", "mlp")],
            "ssm_state_size": 16,
            "mamba_num_heads": 8,
            "mamba_head_dim": 12,
            "n_groups": 2,
            "use_bias": True,
            "mlp_bias": True,
            "time_step_min": 1e-9,
        },
    ),
    "nemotron-h-moe": (
        "NemotronHConfig",
        _ATTENTION
        | {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "ssm_state_size": 16,
            "mamba_num_heads": 8,
            "mamba_head_dim": 12,
            "n_groups": 2,
            "time_step_min": 1e-9,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 48,
            "routed_scaling_factor": 2.5,
        },
    ),
    "granite-hybrid": (
        "GraniteMoeHybridConfig",
        _GRANITE | _MIXERS | {"num_local_experts": 0, "layer_types": _HYBRID, "position_embedding_type": "rope"},
    ),
    "granite-hybrid-moe": (
        "GraniteMoeHybridConfig",
        _GRANITE | _MIXERS | _EXPERTS | {"layer_types": _HYBRID, "intermediate_size": 32},
    ),
    "bamba": ("BambaConfig", _ATTENTION | _MIXERS | {"attn_layer_indices": [1], "attention_bias": True}),
    "falcon-h1": (
        "FalconH1Config",
        _ATTENTION
        | _MIXERS
        | {
            "mamba_d_ssm": 96,
            "mamba_d_head": 12,
            "mamba_rms_norm": True,
            "projectors_bias": True,
            "lm_head_multiplier": 0.8,
            "embedding_multiplier": 1.5,
            "mlp_multipliers": [0.9, 0.7],
            "key_multiplier": 0.6,
            "attention_in_multiplier": 1.2,
            "attention_out_multiplier": 0.8,
            "ssm_multipliers": [0.8, 1.1, 0.9, 1.2, 0.7],
            "ssm_in_multiplier": 1.3,
            "ssm_out_multiplier": 0.6,
        },
    ),
    "falcon-h1-plain": (
        "FalconH1Config",
        _ATTENTION | _MIXERS | {"mamba_d_ssm": None, "mamba_rms_norm": False, "mamba_conv_bias": False},
    ),
    "mamba2": (
        "Mamba2Config",
        {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "residual_in_fp32": False},
    ),
    "minimax-m2": ("MiniMaxM2Config", _ATTENTION | _EXPERTS | {"rotary_dim": 8}),
}
