"""Reading config.json: the keys of both transformers versions, and rejection by name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from baton.engine.checkpoint.model_config import (
    GenerationDefaults,
    read_generation_defaults,
    read_model_config,
)
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel
from tests.unit.engine.checkpoint.small_configs import DEEPSEEK_V2, LLAMA, LLAMA4, PHI4_MINI, QWEN3_MOE, write


def test_defaults_are_those_of_the_architecture(tmp_path: Path) -> None:
    config = read_model_config(write(tmp_path, LLAMA))
    assert (config.num_kv_heads, config.head_dim, config.dtype) == (4, 16, "bfloat16")
    assert (config.rope.kind, config.rope.theta, config.max_model_len) == ("default", 10000.0, 512)
    assert config.attention_scale == 0.25
    assert (config.qkv_bias, config.qk_norm, config.tie_word_embeddings) == (False, None, False)
    assert config.eos_token_ids == {2}


def test_both_spellings_of_the_rotary_embedding_are_equivalent(tmp_path: Path) -> None:
    numbers = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    old = LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "llama3"} | numbers}
    new = LLAMA | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5} | numbers}
    new["dtype"] = new.pop("torch_dtype")
    first = read_model_config(write(tmp_path, old))
    assert first == read_model_config(write(tmp_path, new))
    assert (first.rope.theta, first.rope.kind, first.rope.factor) == (5e5, "llama3", 8.0)


@pytest.mark.parametrize(
    ("scaling", "max_model_len"),
    [
        ({"type": "linear", "factor": 2.0}, 1024),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
        ({"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}, 512),
    ],
)
def test_scaling_stretches_the_context(tmp_path: Path, scaling: dict[str, Any], max_model_len: int) -> None:
    assert read_model_config(write(tmp_path, LLAMA | {"rope_scaling": scaling})).max_model_len == max_model_len


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": []}, "none named"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "layer type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
        ({"architectures": ["GptOssForCausalLM"], "swiglu_limit": 5.0}, "swiglu_limit 5"),
        ({"architectures": ["Gemma2ForCausalLM"], "hidden_activation": "relu"}, "hidden_activation 'relu'"),
        ({"architectures": ["Gemma3ForCausalLM"], "layer_types": ["linear_attention"] * 3}, "linear_attention"),
        ({"architectures": ["Qwen2ForCausalLM"], "attention_bias": True}, "attention_bias"),
        ({"architectures": ["Qwen3ForCausalLM"], "mlp_bias": True}, "mlp_bias"),
        (LLAMA4 | {"num_experts_per_tok": 2}, "num_experts_per_tok 2"),
        (
            LLAMA | {"architectures": ["Gemma2ForCausalLM"], "layer_types": ["chunked_attention"] * 3},
            "layer type chunked_attention without attention_chunk_size",
        ),
        (LLAMA4 | {"layer_types": ["full_attention"] * 3}, "a rotated layer without attention_chunk_size"),
        ({"architectures": ["SmolLM3ForCausalLM"], "sliding_window": 8, "use_sliding_window": True}, "window 8"),
        ({"architectures": ["Ernie4_5_MoeForCausalLM"], "use_bias": True}, "use_bias True"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "llama_4_scaling_beta": 0.1}}, "llama_4_scaling_beta 0.1"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"residual_multiplier": 0.5}, "residual_multiplier 0.5 is not supported with LlamaForCausalLM"),
        (DEEPSEEK_V2 | {"topk_method": "noaux_tc"}, "noaux_tc"),
        (DEEPSEEK_V2 | {"scoring_func": "sigmoid"}, "sigmoid"),
        (DEEPSEEK_V2 | {"norm_topk_prob": True}, "norm_topk_prob"),
    ],
)
def test_unsupported_options_are_refused_by_name(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read_model_config(write(tmp_path, LLAMA | change))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Phi3VForCausalLM", "; the nearest is Phi3ForCausalLM"),
        ("Qwen2VLForConditionalGeneration", "; the nearest is Qwen2ForCausalLM"),
        ("ChatGLMModel", "; the nearest is GlmForCausalLM"),
        ("BloomForCausalLM", ""),  # an ending in common is no similarity
    ],
)
def test_an_unknown_architecture_is_refused_with_the_nearest(tmp_path: Path, name: str, nearest: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"'{name}' is not supported, only Llama[^;]*{nearest}$"):
        read_model_config(write(tmp_path, LLAMA | {"architectures": [name]}))


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ["MistralForCausalLM"], "sliding_window": None},
        {"architectures": ["MistralForCausalLM"], "sliding_window": 512},
        {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 256, "use_sliding_window": False},
        {"architectures": ["Qwen3ForCausalLM"], "sliding_window": 8, "layer_types": ["full_attention"] * 3},
    ],
)
def test_a_window_that_hides_nothing_is_accepted(tmp_path: Path, change: dict[str, Any]) -> None:
    assert read_model_config(write(tmp_path, LLAMA | change)).max_model_len == 512


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        (QWEN3_MOE | {"num_experts_per_tok": 9}, "cannot choose 9 of 8"),
        (PHI4_MINI | {"partial_rotary_factor": 1.0}, "short_factor must be 8 numbers"),
        (
            PHI4_MINI | {"rope_scaling": PHI4_MINI["rope_scaling"] | {"long_factor": ["x"]}},
            "long_factor must be a list",
        ),
        (PHI4_MINI | {"rope_scaling": PHI4_MINI["rope_scaling"] | {"long_factor": [0] * 6}}, "from 0.001"),
        (PHI4_MINI | {"partial_rotary_factor": 0.2, "rope_scaling": None}, "rotary width 3 must be an even"),
        (PHI4_MINI | {"partial_rotary_factor": 0.02, "rope_scaling": None}, "rotary width 0 must be an even"),
        (
            PHI4_MINI | {"partial_rotary_factor": 0.02, "rope_scaling": {"type": "su", "short_factor": []}},
            "rotary width 0 must be an even",
        ),
        (PHI4_MINI | {"original_max_position_embeddings": 1}, "original_max_position_embeddings must be from 2"),
        (
            PHI4_MINI | {"rope_scaling": PHI4_MINI["rope_scaling"] | {"long_factor": [10**400] * 6}},
            "long_factor must be a list",
        ),
        ({"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0]}, "no_rope_layers has 2 of 3 layers"),
        (DEEPSEEK_V2 | {"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 1}, "3 groups"),
    ],
)
def test_invalid_values_are_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=named):
        read_model_config(write(tmp_path, LLAMA | change))


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match=r"config\.json does not exist"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidCheckpoint, match=r"config\.json cannot be read"):
        read_model_config(tmp_path)


def test_generation_config_names_the_end_tokens_and_defaults(tmp_path: Path) -> None:
    write(tmp_path, LLAMA, {"eos_token_id": [7, 9], "temperature": 0.6, "top_k": 20, "top_p": 0.95})
    assert read_model_config(tmp_path).eos_token_ids == {7, 9}
    assert read_generation_defaults(tmp_path) == GenerationDefaults(temperature=0.6, top_k=20, top_p=0.95)


def test_without_generation_config_there_are_no_defaults(tmp_path: Path) -> None:
    assert read_generation_defaults(write(tmp_path, LLAMA)) == GenerationDefaults()


def test_reading_a_config_imports_no_torch() -> None:
    modules = "baton.engine.checkpoint.model_config, baton.engine.checkpoint.tensor_index"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
