"""Llama 4, its text: chunked attention, layers without rotation whose queries grow with the context, experts."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import LANGUAGE_MODEL, Family
from baton.engine.families.experts import read_num_experts
from baton.engine.families.options import unsupported
from baton.engine.families.smollm3 import read_unrotated_layers
from baton.engine.families.spans import CHUNKED, WHOLE, read_spans
from baton.engine.families.tensor_names import ExpertNames, TensorNames
from baton.engine.moe import MoEConfig
from baton.engine.rope import RopeConfig

TUNING = "attn_temperature_tuning"


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    unrotated = read_unrotated_layers(config, shared.num_layers)
    types = [WHOLE if layer in unrotated else CHUNKED for layer in range(shared.num_layers)]
    spans = read_spans(config, shared.architecture, shared.num_layers, types)
    bias = config.boolean("attention_bias", False)
    if any((span.size is None) != (layer in unrotated) for layer, span in enumerate(spans)):
        raise unsupported(config, shared.architecture, "a rotated layer without attention_chunk_size, or the reverse")
    return replace(
        shared,
        intermediate_size=config.size("intermediate_size_mlp"),
        unrotated_layers=unrotated,
        spans=spans,
        rope=_growing_queries(config, shared.rope),
        local_rope=shared.rope,
        qk_norm="unit" if config.boolean("use_qk_norm", True) else None,
        qkv_bias=bias,
        attention_output_bias=bias,
        moe=_read_experts(config, shared),
    )


def _growing_queries(config: JsonObject, rope: RopeConfig) -> RopeConfig:
    """Return the embedding of layers that do not rotate, but scale queries (arXiv 2501.19399)."""
    return RopeConfig(
        theta=rope.theta,
        rotary_dim=rope.rotary_dim,
        interleaved=rope.interleaved,
        original_max_position_embeddings=config.size("floor_scale", 8192),
        query_scaling_beta=config.number("attn_scale", 0.1, minimum=0) if _tunes(config) else 0.0,
        query_scaling_offset=1,
    )


def _tunes(config: JsonObject) -> bool:
    """Return whether queries grow with the context; some configs write it as a number."""
    value = config.raw(TUNING) if TUNING in config else True
    return value if isinstance(value, bool) else config.size(TUNING, minimum=0) > 0


def _read_experts(config: JsonObject, shared: ModelConfig) -> MoEConfig:
    if (chosen := config.integer("num_experts_per_tok", 1)) != 1:
        raise unsupported(config, shared.architecture, f"num_experts_per_tok {chosen}")
    step, size = config.size("interleave_moe_layer_step", 1), config.size("intermediate_size")
    every = range(step - 1, shared.num_layers, step)
    sparse = config.integers("moe_layers") if "moe_layers" in config else every
    return MoEConfig(
        num_experts=read_num_experts(config),
        num_experts_per_token=1,
        intermediate_size=size,
        norm_topk_prob=False,
        scoring="sigmoid",
        weights_inputs=True,
        shared_size=size,
        dense_layers=frozenset(range(shared.num_layers)) - frozenset(sparse),
    )


LLAMA4 = Family(
    title="Llama 4",
    architectures=("Llama4ForCausalLM",),
    read=_read,
    reads=frozenset({"attention_bias", "attention_chunk_size", "layer_types"}),
    names=TensorNames(
        mlp="feed_forward",
        experts=(
            ExpertNames(block="feed_forward", router="router.weight", shared="shared_expert", all_transposed=True),
        ),
    ),
    theta=5e5,
    rms_norm_eps=1e-5,
    interleaved=True,
    head_dim=128,
    defaults={"attention_chunk_size": 8192},
)
LLAMA4_TEXT = replace(
    LLAMA4,
    title="Llama 4 (text)",
    architectures=("Llama4ForConditionalGeneration",),
    has_text_config=True,
    defaults={
        "attention_chunk_size": 8192,
        "vocab_size": 202048,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "max_position_embeddings": 131072,
    },
    prefixes=LANGUAGE_MODEL,
    unused=("vision_model.", "multi_modal_projector.", "model.vision_model.", "model.multi_modal_projector."),
)
