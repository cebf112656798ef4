"""SmolLM3: some layers have no rotary embedding (NoPE, arXiv 2501.18795)."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.errors import InvalidCheckpoint
from baton.engine.families.base import Family
from baton.engine.families.options import refuse_window

INTERVAL = 4  # default of no_rope_layer_interval


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    refuse_window(config, shared.architecture, is_used=config.boolean("use_sliding_window", False))
    bias = config.boolean("attention_bias", False)
    return replace(
        shared,
        qkv_bias=bias,
        attention_output_bias=bias,
        mlp_bias=config.boolean("mlp_bias", False),
        unrotated_layers=read_unrotated_layers(config, shared.num_layers),
    )


def read_unrotated_layers(config: JsonObject, num_layers: int) -> frozenset[int]:
    """Return the layers without a rotary embedding; despite its name, `no_rope_layers` has a 0 for each of them."""
    interval = config.size("no_rope_layer_interval", INTERVAL)
    rotates = config.integers("no_rope_layers") or [(layer + 1) % interval for layer in range(num_layers)]
    if len(rotates) < num_layers:
        raise InvalidCheckpoint(f"{config.source}: no_rope_layers has {len(rotates)} of {num_layers} layers")
    return frozenset(layer for layer in range(num_layers) if not rotates[layer])


SMOLLM3 = Family(
    title="SmolLM3",
    architectures=("SmolLM3ForCausalLM",),
    read=_read,
    reads=frozenset({"attention_bias", "mlp_bias"}),
    theta=2e6,
    tie_word_embeddings=True,
)
