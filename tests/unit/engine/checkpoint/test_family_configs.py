"""Keys of config.json that one family of models has."""

import math
from pathlib import Path
from typing import Any

import pytest

from baton.engine.checkpoint.model_config import (
    read_model_config,
)
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel
from baton.engine.kv_heads import KVHeads
from baton.engine.mla import IndexerConfig
from tests.unit.engine.checkpoint.small_configs import DEEPSEEK_V2, GEMMA4, LLAMA, PHI4_MINI, QWEN3_MOE, write


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
