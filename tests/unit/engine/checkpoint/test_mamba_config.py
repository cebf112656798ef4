"""Reading config.json: layers with Mamba-2 mixers, their sizes, and what is refused."""

from math import inf
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import ModelConfig
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel
from baton.engine.kv.dtype import kv_bytes_per_token
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.mamba import Mamba2Config
from tests.checkpoints import make_checkpoint
from tests.paged_model import PagedModel
from tests.unit.engine.checkpoint.test_model_config import LLAMA, write

MIXER = {"mamba_n_heads": 8, "mamba_d_head": "auto", "mamba_n_groups": 2, "mamba_d_state": 16}
GRANITE = (
    LLAMA
    | MIXER
    | {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 0,
        "shared_intermediate_size": 80,
    }
)
BAMBA = LLAMA | MIXER | {"architectures": ["BambaForCausalLM"], "attn_layer_indices": [1]}
FALCON = LLAMA | MIXER | {"architectures": ["FalconH1ForCausalLM"], "mamba_d_ssm": 96}
NEMOTRON = LLAMA | {
    "architectures": ["NemotronHForCausalLM"],
    "num_hidden_layers": 4,
    "hybrid_override_pattern": "M-*M",
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "attention_head_dim": 32,
}
LATENT = {"hybrid_override_pattern": "ME*M", "moe_latent_size": 16}
MAMBA2 = {key: value for key, value in LLAMA.items() if not key.startswith(("num_attention", "max_pos", "interm"))} | {
    "architectures": ["Mamba2ForCausalLM"],
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 16,
    "n_groups": 2,
}


def mixers_of(config: ModelConfig) -> Mamba2Config:
    assert isinstance(config.recurrent, Mamba2Config)
    return config.recurrent


@pytest.mark.parametrize(
    ("values", "mixers", "attention", "width"),
    [
        (GRANITE, (0, 2), (1,), 128),
        (GRANITE | {"layer_types": ["linear_attention"] * 2 + ["full_attention"]}, (0, 1), (2,), 128),
        (BAMBA, (0, 2), (1,), 128),
        (BAMBA | {"mamba_expand": 1}, (0, 2), (1,), 64),
        (FALCON, (0, 1, 2), (0, 1, 2), 96),
        (FALCON | {"mamba_d_ssm": None}, (0, 1, 2), (0, 1, 2), 128),
        (NEMOTRON, (0, 3), (2,), 128),
        (NEMOTRON | {"layers_block_type": ["mamba", "attention", "mlp", "mlp"]}, (0,), (1,), 128),
        (MAMBA2, (0, 1, 2), (), 128),
    ],
)
def test_layers_and_sizes(
    tmp_path: Path, values: dict[str, Any], mixers: tuple[int, ...], attention: tuple[int, ...], width: int
) -> None:
    config = read_model_config(write(tmp_path, values))
    found = mixers_of(config)
    assert (found.layers, config.kv_layers) == (mixers, attention)
    assert found.state_shapes == ((3, width + 2 * 2 * 16), (2, 16, width // 2))
    assert found.step_limits == (0.0, inf)


def test_a_model_of_attention_alone_has_no_state(tmp_path: Path) -> None:
    values = GRANITE | {"layer_types": ["attention"] * 3, "position_embedding_type": "rope", "mamba_n_heads": 7}
    config = read_model_config(write(tmp_path, values))
    assert config.recurrent is None
    assert config.kv_layers == (0, 1, 2)
    assert not config.unrotated_layers


def test_the_number_of_layers_follows_from_their_types(tmp_path: Path) -> None:
    values = {key: value for key, value in NEMOTRON.items() if key != "num_hidden_layers"}
    config = read_model_config(write(tmp_path, values | {"mtp_hybrid_override_pattern": "*E"}))
    assert config.num_layers == 4
    assert config.head_dim == 32


@pytest.mark.parametrize(
    ("limits", "expected"),
    [([0.01, 0.5], (0.01, 0.5)), ([0, inf], (0.0, inf)), ([0.0, {"__float__": "Infinity"}], (0.0, inf))],
)
def test_limits_of_steps(tmp_path: Path, limits: list[object], expected: tuple[float, float]) -> None:
    config = read_model_config(write(tmp_path, BAMBA | {"time_step_limit": limits}))
    assert mixers_of(config).step_limits == expected


def test_a_model_without_attention_has_blocks_for_its_state(tmp_path: Path) -> None:
    config = read_model_config(write(tmp_path, MAMBA2))
    assert KVCacheLayout.of(config, 16).block_bytes == 4096
    assert kv_bytes_per_token(config) == 0
    assert KVCacheLayout.of(config, 16, num_parts=2).block_shape == (2, 4096 // 2)  # in bfloat16
    assert KVCacheLayout.of(config, 16, num_parts=2, num_ranks=2).block_shape == (1, 4096 // 2)
    with pytest.raises(ValueError, match="1 parts cannot be divided among 2 ranks"):
        KVCacheLayout.of(config, 16, num_parts=1, num_ranks=2)
    large = read_model_config(write(tmp_path, MAMBA2 | {"hidden_size": 4096, "num_heads": 128, "head_dim": 64}))
    size = 4 * mixers_of(large).state_size
    assert size <= 16 * KVCacheLayout.of(large, 16).block_bytes < size + 16 * 64


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (NEMOTRON | LATENT, "moe_latent_size 16 is not supported with NemotronH"),
        (NEMOTRON | {"hybrid_override_pattern": "----"}, "a model with neither mixers nor attention is not supported"),
        (NEMOTRON | {"mlp_hidden_act": "silu"}, "mlp_hidden_act 'silu' is not supported, only relu2"),
        (NEMOTRON | {"mamba_hidden_act": "gelu"}, "mamba_hidden_act 'gelu' is not supported, only silu"),
        (NEMOTRON | {"sliding_window": 128}, "sliding_window 128 is not supported with NemotronH"),
        (GRANITE | {"layer_types": ["mamba", "attention", "conv"]}, "layer type 'conv' is not supported"),
        (FALCON | {"attention_bias": True, "attention_in_multiplier": 2.0}, "attention_bias with attention_in_mult"),
        (BAMBA | {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported with Bamba"),
        (LLAMA | {"ssm_multipliers": [1.0, 2.0, 1.0, 1.0, 1.0]}, "ssm_multipliers .* is not supported with Llama"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read_model_config(write(tmp_path, change))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (NEMOTRON | {"hybrid_override_pattern": "MX*M"}, "hybrid_override_pattern has 'X', but may only have M, "),
        (NEMOTRON | {"hybrid_override_pattern": "M-*"}, "hybrid_override_pattern has 3 entries for 4 layers"),
        (GRANITE | {"layer_types": ["mamba"]}, "layer_types has 1 entries for 3 layers"),
        (GRANITE | {"mamba_d_head": 5}, r"8 heads of 5 \(mamba_n_heads, mamba_d_head\) are not 128 wide"),
        (GRANITE | {"mamba_n_groups": 3}, "mamba_n_heads 8 is no multiple of mamba_n_groups 3"),
        (BAMBA | {"attn_layer_indices": [1, 3]}, "attn_layer_indices has layer 3, but the last layer is 2"),
        (BAMBA | {"time_step_limit": [1.0, 0.5]}, "time_step_limit must be two numbers from 0 on, the smaller one"),
        (BAMBA | {"time_step_limit": 0.5}, "time_step_limit must be two numbers"),
        (FALCON | {"ssm_multipliers": [1.0, 2.0]}, "ssm_multipliers must be 5 numbers"),
    ],
)
def test_values_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=named):
        read_model_config(write(tmp_path, change))


def test_layers_that_the_weights_lack_are_named(tmp_path: Path) -> None:
    directory = make_checkpoint("bamba", tmp_path)
    path = directory / "model.safetensors"
    kept = {name: each for name, each in load_file(path).items() if not name.startswith("model.layers.2.mamba.")}
    save_file(kept, path)
    with pytest.raises(InvalidCheckpoint, match=r"model\.layers\.2\.mamba\.[\w.]+ is missing"):
        PagedModel(directory)
