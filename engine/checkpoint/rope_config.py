"""Reader of the rotary embedding in a config.json, with the keys of transformers 4 or transformers 5."""

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel
from baton.engine.rope import RopeConfig

KINDS = ("default", "linear", "llama3", "yarn", "longrope", "proportional")
SHORT, LONG = "short_factor", "long_factor"
M_ROPE = "mrope"  # default in text: only images have other positions (Qwen2-VL)
OLD_LONGROPE = ("su", "yarn")  # names of longrope in the first Phi-3 checkpoints
MIN_THETA = 1.001  # above 1, so that angles shrink from pair to pair
PARTIAL, MIN_PARTIAL = "partial_rotary_factor", 0.01
MIN_SCALE, MAX_SCALE = 1e-3, 1e6  # bounds of factors and divisors
MIN_LONGROPE_CONTEXT = 2  # its scale divides by the logarithm of the original context


def read_rope(
    config: JsonObject,
    *,
    head_dim: int,
    default_theta: float,
    default_partial: float,
    interleaved: bool,
    layer_type: str | None = None,
) -> RopeConfig:
    """Return the rotary embedding. Raises UnsupportedModel for a kind that is not implemented.

    transformers 4 has `rope_theta` and `rope_scaling` at the top level, transformers 5 has both in `rope_parameters`,
    in some families for each layer type: `layer_type` selects one of them.
    """
    scaling = config.inner("rope_scaling" if "rope_scaling" in config else "rope_parameters")
    if layer_type is not None and layer_type in scaling:
        scaling = scaling.inner(layer_type)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind in OLD_LONGROPE and SHORT in scaling:
        kind = "longrope"
    if kind == M_ROPE:
        kind = "default"
    if kind not in KINDS:
        raise UnsupportedModel(f"{config.source}: rope type {shown(kind)} is not supported, only {', '.join(KINDS)}")
    if scaling.has_inner:
        raise UnsupportedModel(f"{config.source}: a rotary embedding for each layer type is not supported")
    partial = config.number(PARTIAL, default_partial, minimum=MIN_PARTIAL, maximum=1)
    partial = scaling.number(PARTIAL, partial, minimum=MIN_PARTIAL, maximum=1)
    rotary_dim = head_dim if kind == "proportional" else int(head_dim * partial)
    max_positions = config.size("max_position_embeddings")
    original = scaling.size(
        "original_max_position_embeddings",
        config.size("original_max_position_embeddings", max_positions),
        minimum=MIN_LONGROPE_CONTEXT if kind == "longrope" else 1,
    )
    low, high = scaling.number("low_freq_factor", 1.0), scaling.number("high_freq_factor", 4.0)
    if kind == "llama3" and low > high:
        raise InvalidCheckpoint(f"{config.source}: low_freq_factor {low:g} is above high_freq_factor {high:g}")
    theta = config.number("rope_theta", default_theta, minimum=MIN_THETA)
    return RopeConfig(
        theta=scaling.number("rope_theta", theta, minimum=MIN_THETA),
        rotary_dim=rotary_dim,
        kind=kind,
        proportion=partial if kind == "proportional" else 1.0,
        factor=_factor(scaling, kind, max_positions / original),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=original,
        beta_fast=_beta(scaling, "beta_fast", 32.0),
        beta_slow=_beta(scaling, "beta_slow", 1.0),
        mscale=scaling.number("mscale", 0.0, minimum=0, maximum=MAX_SCALE),
        mscale_all_dim=scaling.number("mscale_all_dim", 0.0, minimum=0, maximum=MAX_SCALE),
        attention_factor=scaling.number("attention_factor", minimum=0) if "attention_factor" in scaling else None,
        truncate=scaling.boolean("truncate", True),
        interleaved=interleaved,
        query_scaling_beta=scaling.number("llama_4_scaling_beta", 0.0, minimum=0, maximum=MAX_SCALE),
        divisors=_divisors(scaling, SHORT, rotary_dim) if kind == "longrope" else (),
        long_divisors=_divisors(scaling, LONG, rotary_dim) if kind == "longrope" else (),
    )


def _divisors(scaling: JsonObject, key: str, rotary_dim: int) -> tuple[float, ...]:
    """Return LongRoPE's divisors (arXiv 2402.13753, section 3.2), one per rotated pair."""
    divisors = scaling.numbers(key)
    if len(divisors) != rotary_dim // 2 or any(divisor < MIN_SCALE for divisor in divisors):
        raise InvalidCheckpoint(
            f"{scaling.source}: {key} must be {rotary_dim // 2} numbers from {MIN_SCALE:g}, one for each rotated pair"
        )
    return tuple(divisors)


def max_context(config: JsonObject, rope: RopeConfig) -> int:
    """Return the longest context: `max_position_embeddings`, extended by the RoPE scaling as in vLLM."""
    context = config.size("max_position_embeddings")
    if rope.kind == "yarn":
        context = int(rope.original_max_position_embeddings * rope.factor)
    elif rope.kind == "linear":
        context = int(context * rope.factor)
    if context < 1:
        raise InvalidCheckpoint(f"{config.source}: the factor {rope.factor:g} leaves a context of 0 tokens")
    return context


def _factor(scaling: JsonObject, kind: str, stretch: float) -> float:
    """Return the scaling factor; YaRN's and LongRoPE's default is `stretch`, the full context over the original one."""
    if kind == "default":
        return 1.0
    default = {"yarn": stretch, "longrope": stretch, "proportional": 1.0}.get(kind)
    return scaling.number("factor", default, minimum=MIN_SCALE, maximum=MAX_SCALE)


def _beta(scaling: JsonObject, key: str, default: float) -> float:
    """Return a number of rotations; some checkpoints write 0 for the default."""
    if scaling.raw(key) == 0:
        return default
    return scaling.number(key, default, minimum=MIN_SCALE, maximum=MAX_SCALE)
