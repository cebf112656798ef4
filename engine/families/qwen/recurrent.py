"""Qwen3-Next and Qwen3.5: gated delta nets (arXiv 2412.06464) in most layers, gated attention in the others."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.config import ModelConfig
from baton.engine.delta_net import DeltaNetConfig
from baton.engine.errors import InvalidCheckpoint
from baton.engine.families.base import LANGUAGE_MODEL, Family
from baton.engine.families.options import LAYER_TYPES, unsupported
from baton.engine.families.qwen.text import read_shared_experts
from baton.engine.families.tensor_names import ExpertNames, TensorNames

DELTA_NET, ATTENTION = "linear_attention", "full_attention"


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    if not config.boolean("attn_output_gate", True):
        raise unsupported(config, shared.architecture, "attn_output_gate False")
    bias = config.boolean("attention_bias", False)
    net = _read_delta_net(config, shared)
    return replace(
        shared,
        recurrent=net,
        layers_without_attention=frozenset(net.layers),
        has_output_gate=True,
        qk_norm="head",
        norm_offset=1.0,
        qkv_bias=bias,
        attention_output_bias=bias,
        moe=read_shared_experts(config, shared),
    )


def _read_delta_net(config: JsonObject, shared: ModelConfig) -> DeltaNetConfig:
    num_keys, num_values = config.size("linear_num_key_heads"), config.size("linear_num_value_heads")
    if num_values % num_keys:
        raise InvalidCheckpoint(
            f"{config.source}: linear_num_value_heads {num_values} is no multiple of linear_num_key_heads {num_keys}"
        )
    return DeltaNetConfig(
        layers=_read_layers(config, shared),
        num_key_heads=num_keys,
        num_value_heads=num_values,
        key_dim=config.size("linear_key_head_dim"),
        value_dim=config.size("linear_value_head_dim"),
        conv_size=config.size("linear_conv_kernel_dim", minimum=2),
    )


def _read_layers(config: JsonObject, shared: ModelConfig) -> tuple[int, ...]:
    """Return the layers with a delta net: by `layer_types`, otherwise all but each `full_attention_interval`-th."""
    period, layers = config.size("full_attention_interval", 4), range(shared.num_layers)
    types = config.texts(LAYER_TYPES) or [DELTA_NET if (layer + 1) % period else ATTENTION for layer in layers]
    if len(types) != len(layers):
        raise InvalidCheckpoint(f"{config.source}: {LAYER_TYPES} has {len(types)} entries for {len(layers)} layers")
    for each in types:
        if each not in (DELTA_NET, ATTENTION):
            raise unsupported(config, shared.architecture, f"layer type {shown(each)}")
    found = tuple(layer for layer in layers if types[layer] == DELTA_NET)
    if len(found) in (0, len(layers)):
        raise unsupported(config, shared.architecture, f"only {types[0]} in all layers")
    return found


NETS = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "norm_topk_prob": True,
}
SHARED_EXPERT = ExpertNames(shared="shared_expert")

QWEN3_NEXT = Family(
    title="Qwen3-Next",
    architectures=("Qwen3NextForCausalLM",),
    read=_read,
    reads=frozenset({"attention_bias", "layer_types", "partial_rotary_factor"}),
    names=TensorNames(experts=(SHARED_EXPERT,), by_key_head=True),
    head_dim=256,
    partial_rotary_factor=0.25,
    defaults=NETS,
    unused=("mtp.",),
)
QWEN3_5 = replace(
    QWEN3_NEXT,
    title="Qwen3.5 (text)",
    architectures=(
        *("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
        *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
    ),
    names=TensorNames(experts=(SHARED_EXPERT,)),
    has_text_config=True,
    prefixes=LANGUAGE_MODEL,
    defaults={**NETS, "intermediate_size": 0, "num_experts": 0},  # either is given
    unused=("mtp.", "visual.", "model.visual."),
)
