"""Reads the rotary embedding of a config.json, in the spelling of transformers 4 and of transformers 5."""

from engine.config import RopeConfig
from engine.errors import InvalidCheckpoint, UnsupportedModel
from engine.json_object import JsonObject

KINDS = ("default", "linear", "llama3", "yarn")


def read_rope(config: JsonObject, *, rotary_dim: int, default_theta: float, interleaved: bool) -> RopeConfig:
    """The rotary embedding; UnsupportedModel for a kind that is not implemented.

    transformers 4 keeps `rope_theta` beside `rope_scaling`, transformers 5 has both in `rope_parameters`.
    """
    scaling = config.inner("rope_scaling" if "rope_scaling" in config else "rope_parameters")
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind not in KINDS:
        raise UnsupportedModel(f"{config.source}: rope type {kind!r} is not supported, only {', '.join(KINDS)}")
    if any(isinstance(value, dict) for value in scaling.values.values()):
        raise UnsupportedModel(f"{config.source}: a rotary embedding for each layer type is not supported")
    partial = scaling.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise UnsupportedModel(f"{config.source}: partial_rotary_factor {partial} is not supported, only 1")
    if rotary_dim % 2:
        raise InvalidCheckpoint(f"{config.source}: the rotary width {rotary_dim} is odd")
    max_positions = config.integer("max_position_embeddings")
    original = scaling.integer(
        "original_max_position_embeddings", config.integer("original_max_position_embeddings", max_positions)
    )
    factor = scaling.number("factor", max_positions / original) if kind == "yarn" else _factor(scaling, kind)
    return RopeConfig(
        theta=scaling.number("rope_theta", config.number("rope_theta", default_theta)),
        rotary_dim=rotary_dim,
        kind=kind,
        factor=factor,
        low_freq_factor=scaling.number("low_freq_factor", 1.0),
        high_freq_factor=scaling.number("high_freq_factor", 4.0),
        original_max_position_embeddings=original,
        beta_fast=scaling.number("beta_fast", 32.0) or 32.0,
        beta_slow=scaling.number("beta_slow", 1.0) or 1.0,
        mscale=scaling.number("mscale", 0.0),
        mscale_all_dim=scaling.number("mscale_all_dim", 0.0),
        attention_factor=scaling.number("attention_factor") if "attention_factor" in scaling else None,
        truncate=scaling.boolean("truncate", True),
        interleaved=interleaved,
    )


def max_context(config: JsonObject, rope: RopeConfig) -> int:
    """Longest context: `max_position_embeddings`, stretched where the scaling stretches it (as vLLM counts it)."""
    if rope.kind == "yarn":
        return int(rope.original_max_position_embeddings * rope.factor)
    max_positions = config.integer("max_position_embeddings")
    return int(max_positions * rope.factor) if rope.kind == "linear" else max_positions


def _factor(scaling: JsonObject, kind: str) -> float:
    return 1.0 if kind == "default" else scaling.number("factor")
