"""Spans of the layers' attention in a config.json, and the rotary embedding of those with a window."""

from collections.abc import Sequence

from baton.engine.attention.span import FULL, AttentionSpan
from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.checkpoint.rope_config import read_rope
from baton.engine.config import ModelConfig
from baton.engine.errors import InvalidCheckpoint
from baton.engine.families.options import LAYER_TYPES, unsupported
from baton.engine.rope import RopeConfig

SLIDING, CHUNKED, WHOLE = "sliding_attention", "chunked_attention", "full_attention"
SIZES = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}
USUAL_WINDOW = {SIZES[SLIDING]: 4096}  # default in most families


def read_spans(
    config: JsonObject, architecture: str, num_layers: int, default: Sequence[str]
) -> tuple[AttentionSpan, ...]:
    """Return the span of each layer, by `layer_types` or, without it, by the types `default`.

    If the size is null, a sliding layer attends to the whole context. Raises UnsupportedModel for another
    type, InvalidCheckpoint for another number of them.
    """
    types = config.texts(LAYER_TYPES) or list(default)
    if len(types) != num_layers:
        raise InvalidCheckpoint(f"{config.source}: {LAYER_TYPES} has {len(types)} entries for {num_layers} layers")
    for each in types:
        if each not in (SLIDING, CHUNKED, WHOLE):
            raise unsupported(config, architecture, f"layer type {shown(each)}")
    if CHUNKED in types and SIZES[CHUNKED] not in config:
        raise unsupported(config, architecture, f"layer type {CHUNKED} without {SIZES[CHUNKED]}")
    return tuple(_span(config, each) for each in types)


def read_window(config: JsonObject, shared: ModelConfig) -> tuple[AttentionSpan, ...]:
    """Return the spans of layers that all have the window `sliding_window`; none if the context is no longer."""
    if SIZES[SLIDING] not in config:
        return ()
    window = config.size(SIZES[SLIDING])
    return () if window >= shared.max_model_len else (AttentionSpan(window),) * shared.num_layers


def read_local_rope(config: JsonObject, head_dim: int, theta: float) -> RopeConfig:
    """Return the rotary embedding of layers with a window, which has no scaling unless `rope_parameters` has it.

    theta: if `rope_parameters` does not have that of each layer type, as transformers 5 writes it.
    """
    local = config.inner("rope_parameters").inner(SLIDING).values or {"rope_theta": theta}
    own = config.changed({"rope_scaling": None, "rope_parameters": local})
    return read_rope(own, head_dim=head_dim, default_theta=theta, default_partial=1.0, interleaved=False)


def _span(config: JsonObject, layer_type: str) -> AttentionSpan:
    key = SIZES.get(layer_type)
    if key is None or key not in config:
        return FULL
    return AttentionSpan(config.size(key), is_chunked=layer_type == CHUNKED)
