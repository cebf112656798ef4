"""Reading config.json: the keys of both transformers versions, and rejection by name."""

import dataclasses
import json
import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.engine.checkpoint.model_config import (
    GenerationDefaults,
    model_config_of,
    read_generation_defaults,
    read_model_config,
)
from baton.engine.config import EngineConfig, KVHeads
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel
from baton.engine.kv.dtype import kv_bytes_per_token
from baton.engine.kv.fingerprint import compatibility_fingerprint
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.mla import IndexerConfig
from baton.kvtransfer.block_slice import PartGroup

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


def write(directory: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


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


def test_sparse_layers_follow_step_and_list(tmp_path: Path) -> None:
    config = read_model_config(write(tmp_path, QWEN3_MOE | {"num_hidden_layers": 6, "decoder_sparse_step": 2}))
    assert [config.is_sparse(layer) for layer in range(6)] == [False, True] * 3
    config = read_model_config(write(tmp_path, QWEN3_MOE | {"mlp_only_layers": [1]}))
    assert [config.is_sparse(layer) for layer in range(3)] == [True, False, True]
    config = read_model_config(write(tmp_path, DEEPSEEK_V2 | {"num_hidden_layers": 5, "moe_layer_freq": 2}))
    assert [config.is_sparse(layer) for layer in range(5)] == [False, False, True, False, True]


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
def test_longrope_has_two_embeddings_and_the_original_context_by_default(tmp_path: Path, kind: str) -> None:
    scaling = PHI4_MINI["rope_scaling"] | {"type": kind}
    config = read_model_config(write(tmp_path, PHI4_MINI | {"rope_scaling": scaling}))
    assert (config.rope.kind, config.rope.rotary_dim, config.rope.factor) == ("longrope", 12, 8.0)
    assert (config.max_model_len, config.default_model_len) == (1024, 128)
    assert config.rope.for_context(128).divisors == (1.0,) * 6
    assert config.rope.for_context(129).divisors == (4.0,) * 6
    assert config.rope.cos_sin_scale == pytest.approx((1 + math.log(8) / math.log(128)) ** 0.5)
    assert read_model_config(write(tmp_path, LLAMA)).default_model_len == 512


def test_layers_without_rotation_follow_list_or_interval(tmp_path: Path) -> None:
    smollm3 = LLAMA | {"architectures": ["SmolLM3ForCausalLM"], "num_hidden_layers": 8}
    assert read_model_config(write(tmp_path, smollm3)).unrotated_layers == {3, 7}
    listed = smollm3 | {"no_rope_layers": [1, 0, 1, 1, 1, 1, 1, 0]}
    assert read_model_config(write(tmp_path, listed)).unrotated_layers == {1, 7}


def test_ernies_sparse_layers_follow_their_range_and_interval(tmp_path: Path) -> None:
    ernie = LLAMA | {
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "num_hidden_layers": 6,
        "moe_num_experts": 8,
        "moe_k": 2,
        "moe_intermediate_size": 32,
    }
    config = read_model_config(write(tmp_path, ernie))
    assert [config.is_sparse(layer) for layer in range(6)] == [False] + [True] * 5
    config = read_model_config(write(tmp_path, ernie | {"moe_layer_end_index": 4, "moe_layer_interval": 2}))
    assert [config.is_sparse(layer) for layer in range(6)] == [False, True, False, True, False, False]


def test_kimi_k2_is_read_as_deepseek_v3(tmp_path: Path) -> None:
    kimi = DEEPSEEK_V2 | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "routed_scaling_factor": 2.827,
        "n_shared_experts": 1,
        "max_position_embeddings": 4096,
        "rope_scaling": {
            "type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 128,
            "mscale_all_dim": 1.0,
        },
    }
    config = read_model_config(write(tmp_path, kimi))
    assert config.moe is not None
    assert (config.moe.num_groups, config.moe.scoring, config.moe.shared_size) == (1, "sigmoid", 32)
    assert config.max_model_len == 4096
    assert config.rope.interleaved


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"q_lora_rank": None}, "q_lora_rank is missing"),
        ({"index_head_dim": 4}, "index_head_dim 4 is below qk_rope_head_dim 8"),
        ({"layer_types": ["full_attention"] * 3}, "layer type 'full_attention'"),
    ],
)
def test_options_of_deepseek_v32_that_are_not_served_are_named(
    tmp_path: Path, options: dict[str, Any], error: str
) -> None:
    sparse = DEEPSEEK_V2 | {
        "architectures": ["DeepseekV32ForCausalLM"],
        "q_lora_rank": 24,
        "routed_scaling_factor": 2.5,
    }
    plain = sparse | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    served = read_model_config(write(tmp_path, plain))
    assert served.mla is not None
    assert served.mla.indexer == IndexerConfig(num_heads=64, head_dim=128, topk=2048)
    for name in ("indexed_attention", "deepseek_sparse_attention"):  # of newer and older transformers
        assert read_model_config(write(tmp_path, plain | {"layer_types": [name] * 3})) == served
    with pytest.raises((UnsupportedModel, InvalidCheckpoint), match=error):
        read_model_config(write(tmp_path, plain | options))


def test_layers_with_experts_may_be_listed(tmp_path: Path) -> None:
    flash = DEEPSEEK_V2 | {
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "routed_scaling_factor": 1.8,
        "mlp_layer_types": ["dense", "sparse", "dense"],
    }
    config = read_model_config(write(tmp_path, flash))
    assert [config.is_sparse(layer) for layer in range(3)] == [False, True, False]
    with pytest.raises(InvalidCheckpoint, match="dense or sparse for 3 layers"):
        read_model_config(write(tmp_path, flash | {"mlp_layer_types": ["dense", "sparse"]}))


def test_the_requested_dtype_wins_over_the_checkpoints(tmp_path: Path) -> None:
    assert read_model_config(write(tmp_path, LLAMA), "float32").dtype == "float32"
    with pytest.raises(UnsupportedModel, match="int8"):
        read_model_config(write(tmp_path, LLAMA), "int8")


GEMMA4 = LLAMA | {
    "architectures": ["Gemma4ForCausalLM"],
    "sliding_window": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


@pytest.mark.parametrize(
    ("options", "heads"),
    [
        ({}, (2, 512)),
        ({"global_head_dim": 32, "num_global_key_value_heads": 1}, (2, 32)),  # only with attention_k_eq_v
        ({"global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True}, (1, 32)),
        ({"per_layer_config": {"2": {"head_dim": 24, "num_key_value_heads": 4}}}, (4, 24)),
        ({"per_layer_config": {}}, (2, 16)),  # as transformers writes it if all heads are alike
    ],
)
def test_gemma4s_layers_have_two_kinds_of_heads(
    tmp_path: Path, options: dict[str, Any], heads: tuple[int, int]
) -> None:
    config = read_model_config(write(tmp_path, GEMMA4 | options))
    assert config.whole_heads == KVHeads(*heads)
    assert [config.kv_heads_of(layer) for layer in range(3)] == [KVHeads(2, 16), KVHeads(2, 16), KVHeads(*heads)]
    assert (config.rope.kind, config.rope.rotary_dim, config.rope.proportion) == ("proportional", heads[1], 0.25)
    assert config.local_rope is not None
    assert config.local_rope.rotary_dim == 16


def test_gemma4s_default_rotary_embedding_is_never_partial(tmp_path: Path) -> None:
    partial = {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 1e4}
    ropes = {"full_attention": partial, "sliding_attention": partial}
    config = read_model_config(write(tmp_path, GEMMA4 | {"rope_parameters": ropes, "global_head_dim": 32}))
    assert config.local_rope is not None
    assert (config.rope.rotary_dim, config.local_rope.rotary_dim) == (32, 16)  # as in transformers


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"enable_moe_block": True, "num_experts": 4, "moe_intermediate_size": 32}, "top_k_experts is missing"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all' .attention to later tokens"),
        ({"sliding_window": None}, "sliding_window null"),
        ({"layer_types": ["sliding_attention"] * 3}, "last layer of type sliding_attention"),
        ({"num_kv_shared_layers": 1}, "num_kv_shared_layers 1 leaves no layer of type full_attention"),
        ({"per_layer_config": {"1": {"head_dim": 32}}}, "per_layer_config other than"),
        ({"per_layer_config": {"2": {"hidden_size": 32}}}, "per_layer_config other than"),
        ({"vocab_size_per_layer_input": 9}, "vocab_size_per_layer_input 9 below vocab_size"),
        ({"num_global_key_value_heads": 3, "attention_k_eq_v": True}, "4 heads do not divide into 3 global KV heads"),
    ],
)
def test_options_of_gemma4_that_are_not_served_are_named(tmp_path: Path, options: dict[str, Any], error: str) -> None:
    with pytest.raises((UnsupportedModel, InvalidCheckpoint), match=error):
        read_model_config(write(tmp_path, GEMMA4 | options))


AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}}
GEMMA3 = LLAMA | {"architectures": ["Gemma3ForCausalLM"]}
GLM4 = LLAMA | {"architectures": ["Glm4ForCausalLM"]}


@pytest.mark.parametrize(
    ("config", "stored", "requested", "on_gpu", "on_cpu"),
    [
        (LLAMA, "float16", "auto", "float16", "float32"),
        (LLAMA, "float16", "float16", "float16", "float32"),
        (LLAMA, "float16", "bfloat16", "bfloat16", "bfloat16"),
        (LLAMA, "bfloat16", "float16", "float16", "bfloat16"),
        (LLAMA, "float32", "float16", "float16", "bfloat16"),
        (LLAMA | AWQ, "float16", "auto", "float16", "bfloat16"),
        (LLAMA | AWQ, "float16", "float16", "float16", "bfloat16"),
        (LLAMA | AWQ, "float16", "float32", "float32", "float32"),
        (GEMMA3, "float16", "auto", "bfloat16", "float32"),
        (GLM4, "float16", "auto", "bfloat16", "float32"),
    ],
)
def test_float16_is_computed_on_gpus_and_replaced_on_cpus(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    config: dict[str, Any],
    stored: str,
    requested: str,
    on_gpu: str,
    on_cpu: str,
) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path, config | {"torch_dtype": stored})
    assert read_model_config(tmp_path, requested, on_cpu=False).dtype == on_gpu
    caplog.clear()
    assert read_model_config(tmp_path, requested).dtype == on_cpu
    is_replaced = f"no CPU kernels for float16: served as {on_cpu}" in caplog.text
    assert is_replaced is (requested in ("auto", "float16"))


@pytest.mark.parametrize(("config", "title"), [(GEMMA3, "Gemma 3"), (GLM4, "GLM-4-0414 and GLM-Z1")])
def test_a_family_that_overflows_float16_is_refused_in_it(tmp_path: Path, config: dict[str, Any], title: str) -> None:
    write(tmp_path, config)
    with pytest.raises(UnsupportedModel, match=f"^{title} overflows float16; use bfloat16 or float32$"):
        read_model_config(tmp_path, "float16", on_cpu=False)


def test_an_engines_options_and_device_choose_the_type(tmp_path: Path) -> None:
    write(tmp_path, LLAMA)
    engine = EngineConfig(model=str(tmp_path), dtype="float16", device="cuda:1")
    assert model_config_of(engine).dtype == "float16"
    assert model_config_of(dataclasses.replace(engine, device="cpu")).dtype == "bfloat16"


def test_float16_takes_as_much_kv_as_bfloat16_and_is_not_exchanged_with_it(tmp_path: Path) -> None:
    write(tmp_path, LLAMA)
    half = read_model_config(tmp_path, "float16", on_cpu=False)
    other = read_model_config(tmp_path, "bfloat16", on_cpu=False)
    layouts = [KVCacheLayout.of(each, 16) for each in (half, other)]
    assert [each.dtype for each in layouts] == [torch.float16, torch.bfloat16]
    assert layouts[0].block_bytes == layouts[1].block_bytes == 16 * kv_bytes_per_token(half)
    fingerprints = {compatibility_fingerprint(tmp_path, each, 16, "") for each in (half, other)}
    assert len(fingerprints) == 2


def test_gemmas_multiplier_is_rounded_to_the_models_type(tmp_path: Path) -> None:
    write(tmp_path, LLAMA | {"architectures": ["GemmaForCausalLM"], "hidden_size": 72, "head_dim": 16})
    for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16), ("float32", torch.float64)):
        expected = torch.tensor(72.0, dtype=torch.float64).sqrt().to(dtype)
        assert read_model_config(tmp_path, name, on_cpu=False).embedding_multiplier == expected.item()


def test_generation_config_names_the_end_tokens_and_defaults(tmp_path: Path) -> None:
    write(tmp_path, LLAMA, {"eos_token_id": [7, 9], "temperature": 0.6, "top_k": 20, "top_p": 0.95})
    assert read_model_config(tmp_path).eos_token_ids == {7, 9}
    assert read_generation_defaults(tmp_path) == GenerationDefaults(temperature=0.6, top_k=20, top_p=0.95)


def test_without_generation_config_there_are_no_defaults(tmp_path: Path) -> None:
    assert read_generation_defaults(write(tmp_path, LLAMA)) == GenerationDefaults()


def test_the_layout_counts_a_blocks_bytes(tmp_path: Path) -> None:
    config = read_model_config(write(tmp_path, LLAMA))
    layout = KVCacheLayout.of(config, 16)
    assert layout.pool_shape(5) == (5, 1, 3, 2, 4, 16, 16)
    assert layout.block_bytes == 3 * 2 * 4 * 16 * 16 * 2
    by_head = KVCacheLayout.of(config, 16, num_parts=4)
    assert by_head.pool_shape(5) == (5, 4, 3, 2, 1, 16, 16)
    assert by_head.block_bytes == layout.block_bytes
    latent = KVCacheLayout.of(read_model_config(write(tmp_path, DEEPSEEK_V2), "float32"), 16, num_parts=4, num_ranks=3)
    assert latent.pool_shape(5) == (5, 3, 16, 40)
    assert latent.block_bytes == 3 * 16 * 40 * 4
    assert latent.num_parts == 1


def test_ranks_hold_shards_of_every_block(tmp_path: Path) -> None:
    config = read_model_config(write(tmp_path, LLAMA))  # with 4 KV heads
    for num_parts, num_ranks, held in ((1, 1, 1), (2, 1, 2), (2, 2, 1), (4, 2, 2), (4, 8, 1)):
        layout = KVCacheLayout.of(config, 16, num_parts, num_ranks)
        assert layout.block_shape == (held, 3, 2, 4 // num_parts, 16, 16)
        assert layout.num_parts == held == PartGroup(num_parts, num_ranks).parts_per_rank
    for num_parts, num_ranks in ((3, 1), (0, 1), (8, 1), (4, 3), (2, 4), (1, 2), (4, 0)):
        with pytest.raises(ValueError, match="cannot be divided"):
            KVCacheLayout.of(config, 16, num_parts, num_ranks)


@pytest.mark.parametrize("num_parts", [1, 4])
def test_a_layers_keys_and_values_are_strided_views_and_a_shard_is_one_region(tmp_path: Path, num_parts: int) -> None:
    layout = KVCacheLayout.of(read_model_config(write(tmp_path, LLAMA)), 8, num_parts)
    pool = torch.zeros(layout.pool_shape(5), dtype=layout.dtype)
    # [num_blocks, num_kv_heads, block_size, head_dim]; a copy would fail
    keys, values = (each.view(5, 4, 8, 16) for each in KVCacheLayout.layer_cache(pool, 1).unbind(2))
    assert keys.stride() == values.stride()
    assert keys.stride()[2:] == (16, 1)
    keys[3, -1] = 1
    values[3, -1] = 2
    part = pool.view(5 * num_parts, -1)[4 * num_parts - 1]
    assert part.is_contiguous()
    assert part.nbytes * num_parts == layout.block_bytes
    assert float(part.sum()) == float(pool.sum()) == (1 + 2) * 8 * 16


def test_reading_a_config_imports_no_torch() -> None:
    modules = "baton.engine.checkpoint.model_config, baton.engine.checkpoint.tensor_index"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
