"""Options of a config.json that change what a model computes, and their refusal in families that do not read them."""

from collections.abc import Collection, Mapping

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.errors import UnsupportedModel

# Values with which an option has no effect; without any, the option must be absent.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_bias": (False,),
    "is_causal": (True,),
    "use_bidirectional_attention": (False,),
    "partial_rotary_factor": (1,),
    "llama_4_scaling_beta": (0,),
    "attention_chunk_size": (),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logit_scale": (),
    "clip_qkv": (),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "attention_multiplier": (),
    "logits_scaling": (1,),
    "lm_head_multiplier": (1,),
    "key_multiplier": (1,),
    "attention_in_multiplier": (1,),
    "attention_out_multiplier": (1,),
    "mlp_multipliers": ([1, 1],),
    "ssm_in_multiplier": (1,),
    "ssm_out_multiplier": (1,),
    "ssm_multipliers": ([1] * 5,),
}
LATER_TOKENS = "attention to later tokens"
MEANINGS = {"is_causal": LATER_TOKENS, "use_bidirectional_attention": LATER_TOKENS}  # of keys that do not say it
LAYER_TYPES, FULL = "layer_types", "full_attention"


def unsupported(config: JsonObject, architecture: str, what: str) -> UnsupportedModel:
    """Return the error for an option that is not implemented."""
    return UnsupportedModel(f"{config.source}: {what} is not supported with {architecture}")


def refuse_unread(config: JsonObject, architecture: str, reads: Collection[str]) -> None:
    """Raise UnsupportedModel for the first option that has an effect and is not in `reads`."""
    rotary = config.inner("rope_scaling"), config.inner("rope_parameters")
    for key, neutral in NEUTRAL.items():
        value = next((each.raw(key) for each in (config, *rotary) if key in each), None)
        if value is not None and key not in reads and value not in neutral:
            meaning = f" ({MEANINGS[key]})" if key in MEANINGS else ""
            raise unsupported(config, architecture, f"{key} {shown(value)}{meaning}")
    for kind in config.texts(LAYER_TYPES):
        if LAYER_TYPES not in reads and kind != FULL:
            raise unsupported(config, architecture, f"layer type {shown(kind)}")


def refuse_window(config: JsonObject, architecture: str, *, is_used: bool = True) -> None:
    """Raise UnsupportedModel if a sliding window is used and shorter than the context, so that it has an effect."""
    if not is_used or "sliding_window" not in config or config.texts(LAYER_TYPES):
        return  # layer_types, if present, name the layers with a sliding window
    if (window := config.integer("sliding_window")) < config.integer("max_position_embeddings"):
        raise unsupported(config, architecture, f"sliding_window {window}")
