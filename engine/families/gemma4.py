"""Gemma 4: two kinds of heads, inputs of each layer, last layers that share the KV of earlier ones."""

from dataclasses import replace

from baton.engine.attention.span import FULL
from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.config import ModelConfig
from baton.engine.errors import InvalidCheckpoint
from baton.engine.families.base import LANGUAGE_MODEL, Family
from baton.engine.families.gemma import GEMMA3_TEXT, SANDWICH, read_cap, read_gelu
from baton.engine.families.options import LATER_TOKENS, unsupported
from baton.engine.families.spans import SIZES, SLIDING, WHOLE, read_local_rope, read_spans
from baton.engine.families.tensor_names import ExpertNames
from baton.engine.kv_heads import KVHeads
from baton.engine.moe import MoEConfig
from baton.engine.rope import RopeConfig

PERIOD = 6  # without layer_types, every sixth layer attends to the whole context, and so does the last one
INPUT_SIZE, INPUT_VOCAB_SIZE = "hidden_size_per_layer_input", "vocab_size_per_layer_input"
DEFAULTS = {
    SIZES[SLIDING]: 512,
    "vocab_size": 262144,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "rope_parameters": {
        WHOLE: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    },
}


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    name, num_layers = shared.architecture, shared.num_layers
    if (direction := config.raw("use_bidirectional_attention")) not in (None, False, "vision"):  # of images' tokens
        raise unsupported(config, name, f"use_bidirectional_attention {shown(direction)} ({LATER_TOKENS})")
    if SIZES[SLIDING] in config.nulls:
        raise unsupported(config, name, f"{SIZES[SLIDING]} null")
    types = [SLIDING if (layer + 1) % PERIOD else WHOLE for layer in range(num_layers - 1)] + [WHOLE]
    spans = read_spans(config, name, num_layers, types)
    if spans[-1] != FULL:
        raise unsupported(config, name, f"a last layer of type {SLIDING}")
    num_shared = config.size("num_kv_shared_layers", 0, minimum=0, maximum=num_layers - 1)
    if missing := set(spans) - set(spans[: num_layers - num_shared]):
        kinds = " and ".join(WHOLE if span == FULL else SLIDING for span in missing)
        raise InvalidCheckpoint(f"{config.source}: num_kv_shared_layers {num_shared} leaves no layer of type {kinds}")
    is_shared_wide = config.boolean("use_double_wide_mlp", False) and num_shared > 0
    heads = _whole_heads(config, shared, [layer for layer, span in enumerate(spans) if span == FULL])
    input_size = 0 if INPUT_SIZE in config.nulls else config.size(INPUT_SIZE, 256, minimum=0)
    return replace(
        read_gelu(config, shared),
        norm_offset=0.0,
        qk_norm="head",
        has_value_norm=True,
        spans=spans,
        attention_multiplier=1.0,
        logits_soft_cap=read_cap(config, "final_logit_softcapping", None),
        rope=_rope_of(shared.rope, shared.head_dim, heads.width),
        local_rope=_rope_of(read_local_rope(config, shared.head_dim, 1e4), shared.head_dim, shared.head_dim),
        whole_heads=heads,
        keys_are_values=config.boolean("attention_k_eq_v", False),
        num_kv_shared_layers=num_shared,
        shared_intermediate_size=2 * shared.intermediate_size if is_shared_wide else None,
        layer_input_size=input_size,
        layer_input_vocab_size=_input_vocab_size(config, shared) if input_size else 0,
        has_layer_scalars=True,
        moe=_read_experts(config) if config.boolean("enable_moe_block", False) else None,
        max_model_len=config.size("max_position_embeddings"),
    )


def _input_vocab_size(config: JsonObject, shared: ModelConfig) -> int:
    """Return the number of tokens that have inputs of the layers: all that the model has."""
    size, num_tokens = config.size(INPUT_VOCAB_SIZE, 262144), shared.vocab_size
    if size < num_tokens:
        raise unsupported(config, shared.architecture, f"{INPUT_VOCAB_SIZE} {size} below vocab_size {num_tokens}")
    return size


def _read_experts(config: JsonObject) -> MoEConfig:
    return MoEConfig(
        num_experts=config.size("num_experts"),
        num_experts_per_token=config.size("top_k_experts"),
        intermediate_size=config.size("moe_intermediate_size"),
        activation="gelu_tanh",
        is_parallel=True,
    )


def _rope_of(rope: RopeConfig, head_dim: int, other_dim: int) -> RopeConfig:
    """Return an embedding that was read for heads of one width for those of another.

    The default kind rotates whole heads, whatever `partial_rotary_factor` is.
    """
    rotary_dim = other_dim if rope.kind == "default" else rope.rotary_dim * other_dim // head_dim
    return replace(rope, rotary_dim=rotary_dim)


def _whole_heads(config: JsonObject, shared: ModelConfig, layers: list[int]) -> KVHeads:
    """Return the KV heads of layers that attend to the whole context.

    transformers writes them in `per_layer_config`, by layer, which is empty if they are those of all layers; earlier
    checkpoints in `global_head_dim` and `num_global_key_value_heads`. Raises UnsupportedModel if `per_layer_config` has
    other options or layers.
    """
    if "per_layer_config" in config:
        given = config.inner("per_layer_config")
        found = {_heads_of(given.inner(str(layer)), shared) for layer in layers}
        others = {key for layer in given.values for key in given.inner(layer).values} - {"head_dim", _KV}
        if len(found) != 1 or others or set(given.values) - set(map(str, layers)):
            raise unsupported(config, shared.architecture, "per_layer_config other than for all layers of " + WHOLE)
        [heads] = found
    else:
        width = config.size("global_head_dim", 512)
        has_own = config.boolean("attention_k_eq_v", False) and f"num_global_{_KV[4:]}" in config
        heads = KVHeads(config.size(f"num_global_{_KV[4:]}") if has_own else shared.num_kv_heads, width)
    if shared.num_heads % heads.count:
        raise InvalidCheckpoint(
            f"{config.source}: {shared.num_heads} heads do not divide into {heads.count} global KV heads"
        )
    return heads


_KV = "num_key_value_heads"


def _heads_of(layer: JsonObject, shared: ModelConfig) -> KVHeads:
    return KVHeads(layer.size(_KV, shared.num_kv_heads), layer.size("head_dim", shared.head_dim))


GEMMA4 = Family(
    title="Gemma 4",
    architectures=("Gemma4ForCausalLM",),
    read=_read,
    reads=frozenset(
        {"hidden_act", "attention_bias", "layer_types", "final_logit_softcapping", "use_bidirectional_attention"}
    ),
    defaults=DEFAULTS,
    names=replace(
        SANDWICH,
        experts=(ExpertNames(block="", router="router.proj.weight", router_factors="router.per_expert_scale"),),
    ),
    overflows_float16=True,
    theta=1e6,
    tie_word_embeddings=True,
    head_dim=256,
    rope_of=WHOLE,
)
GEMMA4_TEXT = replace(
    GEMMA4,
    title="Gemma 4 (text)",
    architectures=("Gemma4ForConditionalGeneration",),
    has_text_config=True,
    prefixes=LANGUAGE_MODEL,
    unused=(
        *GEMMA3_TEXT.unused,
        *(f"{model}{part}." for model in ("", "model.") for part in ("audio_tower", "embed_vision", "embed_audio")),
    ),
)
