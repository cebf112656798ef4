"""Gemma 1 to 3 (arXiv 2403.08295, 2408.00118, 2503.19786): norms around each part, local and global layers."""

import math
from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.config import ModelConfig
from baton.engine.families.base import LANGUAGE_MODEL, Family
from baton.engine.families.options import unsupported
from baton.engine.families.rounding import rounded
from baton.engine.families.spans import SLIDING, USUAL_WINDOW, WHOLE, read_local_rope, read_spans
from baton.engine.families.tensor_names import NormNames, TensorNames

GELU = ("gelu_pytorch_tanh", "gelu")  # the second means the first in Gemma's configs
READS = frozenset({"hidden_act", "attention_bias"})
LOCAL_READS = READS | {"layer_types", "attn_logit_softcapping", "final_logit_softcapping"}
SANDWICH = TensorNames(
    norms=NormNames(
        after_attention="post_attention_layernorm",
        before_feed_forward="pre_feedforward_layernorm",
        after_feed_forward="post_feedforward_layernorm",
    )
)
MIN_CAP = 1e-3
LOCAL_THETA = 1e4


def read_gelu(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    """Read what all of them have in common."""
    activation = config.text("hidden_activation", config.text("hidden_act", GELU[0]))
    if activation not in GELU:
        raise unsupported(config, shared.architecture, f"hidden_activation {shown(activation)}")
    bias, multiplier = config.boolean("attention_bias", False), math.sqrt(shared.hidden_size)
    return replace(
        shared,
        activation="gelu_tanh",
        norm_offset=1.0,
        embedding_multiplier=rounded(multiplier, shared.dtype),
        qkv_bias=bias,
        attention_output_bias=bias,
    )


def _read_gemma2(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    return _read_local(config, shared, period=2, attention_cap=50.0, logits_cap=30.0)


def _read_gemma3(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    theta = config.number("rope_local_base_freq", LOCAL_THETA)
    return replace(
        _read_local(config, shared, period=config.size("sliding_window_pattern", 6)),
        qk_norm="head",
        local_rope=read_local_rope(config, shared.head_dim, theta),
        max_model_len=config.size("max_position_embeddings"),  # it includes the scaling of the rotary embedding
    )


def _read_local(
    config: JsonObject,
    shared: ModelConfig,
    period: int,
    attention_cap: float | None = None,
    logits_cap: float | None = None,
) -> ModelConfig:
    """Read a model in which each `period`-th layer attends to the whole context, and the others have a window."""
    types = [SLIDING if (layer + 1) % period else WHOLE for layer in range(shared.num_layers)]
    return replace(
        read_gelu(config, shared),
        spans=read_spans(config, shared.architecture, shared.num_layers, types),
        attention_multiplier=config.number("query_pre_attn_scalar", 256.0, minimum=MIN_CAP) ** -0.5,
        attention_soft_cap=read_cap(config, "attn_logit_softcapping", attention_cap),
        logits_soft_cap=read_cap(config, "final_logit_softcapping", logits_cap),
    )


def read_cap(config: JsonObject, key: str, default: float | None) -> float | None:
    """Return a soft cap; null means none."""
    if key in config:
        return config.number(key, minimum=MIN_CAP)
    return None if key in config.nulls else default


GEMMA = Family(
    title="Gemma",
    architectures=("GemmaForCausalLM",),
    read=read_gelu,
    reads=READS,
    tie_word_embeddings=True,
    head_dim=256,
)
GEMMA2 = Family(
    title="Gemma 2",
    architectures=("Gemma2ForCausalLM",),
    read=_read_gemma2,
    reads=LOCAL_READS,
    defaults=USUAL_WINDOW,
    names=SANDWICH,
    overflows_float16=True,
    tie_word_embeddings=True,
    head_dim=256,
)
GEMMA3 = Family(
    title="Gemma 3",
    architectures=("Gemma3ForCausalLM",),
    read=_read_gemma3,
    reads=LOCAL_READS,
    defaults=USUAL_WINDOW,
    names=SANDWICH,
    overflows_float16=True,
    theta=1e6,
    tie_word_embeddings=True,
    head_dim=256,
    rope_of=WHOLE,
)
GEMMA3_TEXT = replace(
    GEMMA3,
    title="Gemma 3 (text)",
    architectures=("Gemma3ForConditionalGeneration",),
    has_text_config=True,
    defaults={
        **USUAL_WINDOW,
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
    },
    prefixes=LANGUAGE_MODEL,
    unused=("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."),
)
