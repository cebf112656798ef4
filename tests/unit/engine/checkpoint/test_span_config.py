"""Reading config.json: windows, chunks, and the rotary embeddings and soft caps of models that have them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.engine.attention.span import AttentionSpan
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.layers.rotary import inverse_frequencies
from tests.unit.engine.checkpoint.small_configs import LLAMA, LLAMA4, write

WINDOW, USUAL, FULL = AttentionSpan(256), AttentionSpan(4096), AttentionSpan()


@pytest.mark.parametrize(
    ("change", "spans"),
    [
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 256}, (WINDOW,) * 3),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 512}, ()),
        ({"architectures": ["Phi3ForCausalLM"], "sliding_window": 256}, (WINDOW,) * 3),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 256,
                "use_sliding_window": True,
                "max_window_layers": 2,
            },
            (FULL, FULL, WINDOW),
        ),
        ({"architectures": ["Gemma2ForCausalLM"], "sliding_window": 256}, (WINDOW, FULL, WINDOW)),
        (
            {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 256, "sliding_window_pattern": 3},
            (WINDOW, WINDOW, FULL),
        ),
        ({"architectures": ["Olmo3ForCausalLM"], "sliding_window": None}, (FULL,) * 3),
        ({"architectures": ["Olmo3ForCausalLM"]}, (USUAL,) * 3),
        ({"architectures": ["Gemma2ForCausalLM"]}, (USUAL, FULL, USUAL)),
        (
            {"architectures": ["GptOssForCausalLM"], "num_local_experts": 4},
            (AttentionSpan(128), FULL, AttentionSpan(128)),
        ),
        (
            {"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True, "max_window_layers": 1},
            (FULL, USUAL, USUAL),
        ),
        ({"architectures": ["MistralForCausalLM"], "max_position_embeddings": 8192}, (USUAL,) * 3),
        (
            {"architectures": ["MistralForCausalLM"], "max_position_embeddings": 8192, "sliding_window": None},
            (),
        ),
        (
            {
                "architectures": ["MistralForCausalLM"],
                "sliding_window": 512,
                "rope_scaling": {"type": "linear", "factor": 2.0},  # a context of 1024
            },
            (AttentionSpan(512),) * 3,
        ),
        (
            {
                "architectures": ["GptOssForCausalLM"],
                "sliding_window": 256,
                "num_local_experts": 4,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            },
            (FULL, WINDOW, FULL),
        ),
    ],
)
def test_layers_have_the_windows_of_their_types(
    tmp_path: Path, change: dict[str, Any], spans: tuple[AttentionSpan, ...]
) -> None:
    assert read_model_config(write(tmp_path, LLAMA | change)).spans == spans


def test_gemma_3s_text_config_may_leave_out_what_is_usual(tmp_path: Path) -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text, "torch_dtype": "bfloat16"}
    config = read_model_config(write(tmp_path, whole))
    assert (config.vocab_size, config.num_heads, config.num_kv_heads, config.head_dim) == (262208, 8, 4, 256)
    assert (config.max_model_len, config.rope.theta, config.rope.factor) == (131072, 1e6, 8.0)
    assert config.spans.count(AttentionSpan(1024)) == 29
    assert config.embedding_multiplier == 50.5  # the root of 2560 in bfloat16


def test_the_text_config_of_llama_4_scout_is_read(tmp_path: Path) -> None:
    """With the numbers of the published one, whose two frequency factors are equal, and without those it shares with
    the defaults.
    """
    text = {
        "attn_temperature_tuning": 4,
        "max_position_embeddings": 10485760,
        "no_rope_layers": [],
        "rope_scaling": {
            "factor": 16.0,
            "high_freq_factor": 1.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
    }
    whole = {"architectures": ["Llama4ForConditionalGeneration"], "text_config": text}
    config = read_model_config(write(tmp_path, whole))
    assert config.spans[:4] == (*(AttentionSpan(8192, is_chunked=True),) * 3, FULL)
    assert config.rope_of(3).query_scaling_beta == 0.1
    assert config.moe is not None
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (48, 40, 8, 128)
    assert (config.moe.num_experts, config.moe.intermediate_size, config.intermediate_size) == (16, 8192, 16384)
    plain = inverse_frequencies(replace(config.rope_of(0), kind="default"))
    turns = 8192 * plain / (2 * torch.pi)
    assert torch.equal(inverse_frequencies(config.rope_of(0)), torch.where(turns < 1, plain / 16, plain))


@pytest.mark.parametrize("tuning", [0, False])
def test_llama_4_without_temperature_tuning_does_not_scale_queries(tmp_path: Path, tuning: int | bool) -> None:
    llama = LLAMA4 | {"num_hidden_layers": 4, "attn_temperature_tuning": tuning}
    assert read_model_config(write(tmp_path, llama)).rope_of(3).query_scaling_beta == 0


def test_a_text_configs_null_is_no_default(tmp_path: Path) -> None:
    text = LLAMA | {"sliding_window": None}
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    assert read_model_config(write(tmp_path, whole)).spans == (FULL,) * 3


def test_gpt_oss_has_yarn_unless_its_config_has_another_embedding(tmp_path: Path) -> None:
    gpt_oss = LLAMA | {"architectures": ["GptOssForCausalLM"], "num_local_experts": 4}
    usual = read_model_config(write(tmp_path, gpt_oss)).rope
    assert (usual.kind, usual.factor, usual.original_max_position_embeddings) == ("yarn", 32.0, 4096)
    assert (usual.theta, usual.truncate) == (150000.0, False)
    for key in ("rope_scaling", "rope_parameters"):
        other = read_model_config(write(tmp_path, gpt_oss | {key: {"rope_type": "linear", "factor": 2.0}})).rope
        assert (other.kind, other.factor) == ("linear", 2.0)


def test_gemmas_soft_caps_have_defaults_and_null_means_none(tmp_path: Path) -> None:
    gemma = LLAMA | {"architectures": ["Gemma2ForCausalLM"]}
    config = read_model_config(write(tmp_path, gemma | {"final_logit_softcapping": None}))
    assert (config.attention_soft_cap, config.logits_soft_cap) == (50.0, None)


@pytest.mark.parametrize(
    "ropes",
    [
        {"rope_theta": 1e6, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            }
        },
    ],
)
def test_gemma_3_has_another_rotary_embedding_in_layers_with_a_window(tmp_path: Path, ropes: dict[str, Any]) -> None:
    gemma = LLAMA | {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 256, "sliding_window_pattern": 3}
    config = read_model_config(write(tmp_path, gemma | ropes))
    assert (config.rope_of(2).theta, config.rope_of(2).factor) == (1e6, 8.0)
    assert (config.rope_of(0).theta, config.rope_of(0).factor) == (2e4, 1.0)
    assert config.max_model_len == 512  # it is not extended once more


def test_llama_4_rotates_in_chunks_and_scales_queries_elsewhere(tmp_path: Path) -> None:
    config = read_model_config(write(tmp_path, LLAMA4 | {"num_hidden_layers": 4, "floor_scale": 100}))
    assert config.spans == (*(AttentionSpan(128, is_chunked=True),) * 3, FULL)
    assert config.unrotated_layers == {3}
    assert [config.rope_of(layer).query_scaling_beta for layer in range(4)] == [0, 0, 0, 0.1]
    assert config.rope_of(3).original_max_position_embeddings == 100
