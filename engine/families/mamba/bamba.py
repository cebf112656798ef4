"""Bamba: Mamba-2 mixers in most layers, attention in the others, and gated MLPs in all."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.errors import InvalidCheckpoint
from baton.engine.families.base import Family
from baton.engine.families.mamba.layers import ATTENTION, MAMBA, expanded, with_mixers
from baton.engine.families.tensor_names import NormNames, TensorNames

ATTENTION_LAYERS = "attn_layer_indices"


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    attended, layers = config.integers(ATTENTION_LAYERS), range(shared.num_layers)
    if wrong := [layer for layer in attended if layer not in layers]:
        raise InvalidCheckpoint(
            f"{config.source}: {ATTENTION_LAYERS} has layer {wrong[0]}, but the last layer is {layers[-1]}"
        )
    types = [ATTENTION if layer in attended else MAMBA for layer in layers]
    bias = config.boolean("attention_bias", False)
    return replace(
        with_mixers(config, shared, types, expanded(config)),
        qkv_bias=bias,
        attention_output_bias=bias,
        mlp_bias=config.boolean("mlp_bias", False),
    )


BAMBA = Family(
    title="Bamba",
    architectures=("BambaForCausalLM",),
    read=_read,
    reads=frozenset({"attention_bias", "mlp_bias", "partial_rotary_factor"}),
    names=TensorNames(norms=NormNames(before_feed_forward="pre_ff_layernorm"), recurrent="mamba", mlp="feed_forward"),
    rms_norm_eps=1e-5,
    partial_rotary_factor=0.5,
    defaults={"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256},
    prefixes=(("model.final_layernorm.", "model.norm."),),
)
